"""Whether a test would lock in the project's own database.

A test without ``django_db``, and a ``SimpleTestCase``, may run before there is a test database, or
without one: a lock that a killed test run leaves behind must not be in the project's store.
"""

from __future__ import annotations

import sys

from django.db import connections

__all__ = ["is_projects_own", "remember"]

_names: dict[str, str] = {}
"""Of the databases before any test runner has exchanged them."""


def remember() -> None:
    """Called once, when the applications are set up: that is before tests are."""
    if not _names:
        _names.update({alias: _name(alias) for alias in connections.settings})


def is_projects_own(alias: str) -> bool:
    """Whether tests run (Django's runner, pytest-django), and this is no test database."""
    return _tests_run() and _names.get(alias) == _name(alias)


def _tests_run() -> bool:
    """Since ``setup_test_environment()``, as that function itself knows it."""
    module = sys.modules.get("django.test.utils")
    return hasattr(getattr(module, "_TestState", None), "saved_data")


def _name(alias: str) -> str:
    return str(connections.settings[alias].get("NAME"))
