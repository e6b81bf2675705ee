"""Settings that ``manage.py check`` refuses."""

from django_project.settings import *  # noqa: F403  (all of them)

LOCKKIT_VIEWS = {"TIMEOUTT": 0}
