"""The counter, for a real ASGI server."""

from __future__ import annotations

import django
from django.conf import settings
from django.core.asgi import get_asgi_application

settings.configure(
    SECRET_KEY="x",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF="django_project.counter",
    INSTALLED_APPS=["django.contrib.contenttypes", "lockkit_django"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    LOCKKIT={"default": "memory://shared"},
    LOCKKIT_VIEWS={"TIMEOUT": 30, "MAX_WAITERS": None},
)
django.setup()
application = get_asgi_application()
