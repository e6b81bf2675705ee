"""Django: machines that die, sleep, or lose their customers in the middle of an order."""

from __future__ import annotations

import pytest
from crashing.machines import DJANGO
from crashing.own import OwnTransactions
from crashing.stories import Restarts, Stories

pytestmark = pytest.mark.timeout(360)  # seconds; most of a test is waiting


class TestSQLite(Stories):
    module = DJANGO
    place = "on_sqlite"


class TestPostgreSQL(Stories, Restarts, OwnTransactions):
    module = DJANGO
    place = "on_postgres"
