"""Machines that die in the middle of an order whose effects are in no database: STORE = "redis"."""

from __future__ import annotations

import pytest
from crashing.machines import DJANGO, FLASK
from crashing.orphans import Orphans

pytestmark = pytest.mark.timeout(360)  # seconds; most of a test is waiting


class TestDjango(Orphans):
    module = DJANGO


class TestFlask(Orphans):
    module = FLASK
