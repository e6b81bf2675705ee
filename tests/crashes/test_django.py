"""Django: machines that die, sleep, or lose their customers in the middle of an order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from crashing.configuration import Configuration
from crashing.machines import DJANGO
from crashing.stories import Restarts, Shop, Stories, open_shop

pytestmark = pytest.mark.timeout(180)  # seconds; most of a test is waiting


class TestSQLite(Stories):
    @pytest.fixture(scope="class")
    @classmethod
    def shop(cls, on_sqlite: Configuration, directory: Path) -> Iterator[Shop]:
        with open_shop(DJANGO, on_sqlite, directory) as shop:
            yield shop


class TestPostgreSQL(Stories, Restarts):
    @pytest.fixture(scope="class")
    @classmethod
    def shop(cls, on_postgres: Configuration, directory: Path) -> Iterator[Shop]:
        with open_shop(DJANGO, on_postgres, directory) as shop:
            yield shop
