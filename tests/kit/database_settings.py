"""Django's settings in processes that lock in a database: ``environment()`` names it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.db.utils import ConnectionHandler
from places import KIT

VARIABLE = "CONFORMANCE_DATABASE"

SECRET_KEY = "for-tests-only"
INSTALLED_APPS = ["lockkit_django"]
DATABASES = {"default": json.loads(os.environ.get(VARIABLE, "{}"))}
if DATABASES["default"].get("ENGINE") == "django.db.backends.mysql":
    import orders_django.mysql  # noqa: F401


def sqlite(path: Path) -> dict[str, Any]:
    return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path)}


def mariadb(url: str, **options: object) -> dict[str, Any]:
    """With PyMySQL or mysqlclient, as ``orders_django.mysql`` has it."""
    parts = urlsplit(url)
    return {
        "ENGINE": "django.db.backends.mysql",
        "NAME": parts.path[1:],
        "USER": parts.username,
        "PASSWORD": parts.password or "",
        "HOST": parts.hostname,
        "PORT": parts.port,
        "OPTIONS": options,
    }


def postgresql(url: str, **options: object) -> dict[str, Any]:
    address, _, name = url.removeprefix("postgresql://postgres@").rpartition("/")
    host, _, port = address.partition(":")
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": name,
        "USER": "postgres",
        "HOST": host,
        "PORT": port,
        "OPTIONS": options,
    }


def complete(database: dict[str, Any]) -> dict[str, Any]:
    """With Django's defaults, as ``connections.settings`` has it."""
    return dict(ConnectionHandler({"default": database}).settings["default"])


def environment(database: dict[str, Any]) -> dict[str, str]:
    """For a process of which this database is the default one."""
    return {
        "PYTHONPATH": str(KIT),
        "DJANGO_SETTINGS_MODULE": "database_settings",
        VARIABLE: json.dumps(database),
    }
