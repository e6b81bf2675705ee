"""``wsgi`` and ``asgi``, for real servers."""

from __future__ import annotations

import os

os.environ["DJANGO_SETTINGS_MODULE"] = "crashing.django_shop.settings"

import django
from django.core.asgi import get_asgi_application
from django.core.management import call_command
from django.core.wsgi import get_wsgi_application
from django.db import connections

from crashing import points
from crashing.configuration import CREATE

django.setup()

from lockkit_django.orders.table import Sql  # noqa: E402  has models

Sql.run = points.stopping(Sql.run)  # type: ignore[method-assign]
if os.environ.pop(CREATE, None):
    call_command("migrate", run_syncdb=True, verbosity=0)
    connections.close_all()  # this process forks

wsgi = points.wsgi(get_wsgi_application())
asgi = points.asgi(get_asgi_application())
