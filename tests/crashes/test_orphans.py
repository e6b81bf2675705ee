"""Machines that die in the middle of an order whose effects are in no database: STORE = "redis"."""

from __future__ import annotations

from crashing.machines import DJANGO, FLASK
from crashing.orphans import Orphans


class TestDjango(Orphans):
    module = DJANGO


class TestFlask(Orphans):
    module = FLASK
