"""Flask: machines that die, sleep, or lose their customers in the middle of an order."""

from __future__ import annotations

import pytest
from crashing.machines import FLASK
from crashing.stories import Restarts, Stories

pytestmark = pytest.mark.timeout(360)  # seconds; most of a test is waiting


class TestSQLite(Stories):
    module = FLASK
    place = "on_sqlite"


class TestPostgreSQL(Stories, Restarts):
    module = FLASK
    place = "on_postgres"
