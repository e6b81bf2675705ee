"""The project that the Django tests run in. Real files, so that other connections can look."""

from __future__ import annotations

import secrets
import tempfile
from pathlib import Path

# Nothing is made here: mypy imports this, too. A run of the tests removes its temporary files.
_HERE = Path(tempfile.gettempdir(), f"lockkit-django-{secrets.token_hex(6)}")

SECRET_KEY = "for-tests-only-" + "x" * 50
DEBUG = False
ALLOWED_HOSTS = ["*"]
USE_TZ = True
ROOT_URLCONF = "django_project.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": f"{_HERE}.sqlite3",
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            # Nobody pulls the plug of this machine, and each COMMIT would wait for its disk.
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF",
        },
        "TEST": {"NAME": f"{_HERE}-test.sqlite3"},
    }
}
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django.contrib.sessions",
    "rest_framework",
    "lockkit_django",
    "django_project.shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "lockkit_django.middleware.LockErrors",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
            ]
        },
    }
]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
LOCKKIT = {"default": {"BACKEND": "django_project.spy.SpyBackend", "LOCATION": "memory://"}}
LOCKKIT_VIEWS = {"TIMEOUT": 0}
