"""Django's own backend for PostgreSQL once more, as it is where psycopg 3 is not installed. Django
looks for psycopg 3 as it imports the backend, once in a process. ENGINE is "django_psycopg2"."""

from __future__ import annotations

import sys
from unittest.mock import patch

import django.db.backends
import psycopg2.extras

__all__ = ["DatabaseWrapper", "IsolationLevel", "psycopg2"]

BACKEND = "django.db.backends.postgresql"

with patch.dict(sys.modules, {"psycopg": None}), patch.dict(vars(django.db.backends)):
    for name in [name for name in sys.modules if name.startswith(BACKEND)]:
        del sys.modules[name]
    from django.db.backends.postgresql.base import DatabaseWrapper
    from django.db.backends.postgresql.psycopg_any import IsolationLevel
