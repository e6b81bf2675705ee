"""``application`` for WSGI and ASGI servers."""

from __future__ import annotations

import os

os.environ["DJANGO_SETTINGS_MODULE"] = "orders_django.settings"

from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application

wsgi = get_wsgi_application()
asgi = get_asgi_application()
