"""The application of the tests' models."""

from __future__ import annotations

from django.apps import AppConfig
from django.contrib.contenttypes.management import create_contenttypes
from django.db.models.signals import post_migrate


class Shop(AppConfig):
    name = "django_project.shop"

    def ready(self) -> None:
        """The flush after each test would make all permissions and content types anew, which takes
        longer than most tests. Content types are made when they are asked for as well."""
        post_migrate.disconnect(dispatch_uid="django.contrib.auth.management.create_permissions")
        post_migrate.disconnect(create_contenttypes)
