"""The project of the server processes: databases and locks come from the environment."""

from __future__ import annotations

import json
import os

from django_project.settings import *  # noqa: F403

ROOT_URLCONF = os.environ.get("ORDERS_URLS", "orders_django.urls")
DATABASES = {"default": json.loads(os.environ["ORDERS_DATABASE"])}
LOCKKIT = {"default": os.environ["ORDERS_LOCKS"]}
LOCKKIT_ORDERS = {"PATHS": [r"^/orders/"], "WAIT": float(os.environ.get("ORDERS_WAIT", "5"))}
MIDDLEWARE = ["lockkit_django.middleware.IdempotentOrderMiddleware"]
if "ORDERS_SETTINGS" in os.environ:  # a whole site, with users
    LOCKKIT_ORDERS |= json.loads(os.environ["ORDERS_SETTINGS"])
    MIDDLEWARE = [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        *MIDDLEWARE,
    ]
SILENCED_SYSTEM_CHECKS = ["lockkit.E007"]  # views.WrongWayRound shows what happens then
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"stderr": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["stderr"], "level": "DEBUG"},
    "loggers": {"django.db.backends": {"level": "INFO"}},
}
