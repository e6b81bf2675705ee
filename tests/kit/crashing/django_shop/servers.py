"""``wsgi`` and ``asgi``, for real servers."""

from __future__ import annotations

import os
from typing import Any

os.environ["DJANGO_SETTINGS_MODULE"] = "crashing.django_shop.settings"

import django
from django.core.asgi import get_asgi_application
from django.core.management import call_command
from django.core.wsgi import get_wsgi_application
from django.db import connections
from django.db.backends.signals import connection_created

from crashing import points
from crashing.configuration import CREATE


def _watch(connection: Any, **_: object) -> None:
    """For ever: ``execute_wrapper()`` is for a while."""
    if _after not in connection.execute_wrappers:
        connection.execute_wrappers.append(_after)


def _after(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
    result = execute(sql, params, many, context)
    points.statement(sql)
    return result


connection_created.connect(_watch)
django.setup()
if os.environ.pop(CREATE, None):
    call_command("migrate", run_syncdb=True, verbosity=0)
    connections.close_all()  # this process forks

wsgi = points.wsgi(get_wsgi_application())
asgi = points.asgi(get_asgi_application())
