"""The shop's settings. What is not said here is Django's or lockkit's default.

There is no LOCKKIT setting: the locks live beside the shop's own database, and need no server.
LOCKKIT_URL=redis://127.0.0.1:6379/0 in the environment moves them to Redis, and no code changes.
"""

from __future__ import annotations

import os

from shop import place

SECRET_KEY = place.secret_key()
DEBUG = False
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "[::1]"]
ROOT_URLCONF = "shop.urls"
WSGI_APPLICATION = "shop.wsgi.application"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "lockkit_django",
    "shop",
]

MIDDLEWARE = [
    "shop.middleware.PageHeaders",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "lockkit_django.middleware.LockErrors",  # a lock by hand that is busy: 423
    "lockkit_django.middleware.IdempotentOrderMiddleware",  # last: after CSRF and login
]

DATABASES = {
    "default": place.django_database(place.database_url()) | {"ATOMIC_REQUESTS": True},
    # The same database once more, for reads that belong to no transaction: see shop/books.py.
    "reader": place.django_database(place.database_url()) | {"TEST": {"MIRROR": "default"}},
}

if place.CACHE_VARIABLE in os.environ:  # for the locks of LOCKKIT_URL=django-cache://default
    CACHES = {
        "default": {
            "BACKEND": place.cache_backend(),
            "LOCATION": os.environ[place.CACHE_VARIABLE],
        }
    }

LOCKKIT_ORDERS = place.ORDERS

# The page of one machine posts its forms to the others.
CSRF_TRUSTED_ORIGINS = [machine.url for machine in place.machines()]
SESSION_COOKIE_SAMESITE = "Lax"
SECURE_REFERRER_POLICY = "same-origin"
# Both machines run on this host, so locks that hold on one host are enough. And DEFERRED is on
# purpose: with IMMEDIATE, SQLite itself would be the lock of the race.
SILENCED_SYSTEM_CHECKS = ["lockkit.I001", "lockkit.W007"]
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["console"], "level": "WARNING"},
    "loggers": {"django.request": {"level": "ERROR"}},  # do not log refusals
}
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}]
