from __future__ import annotations

from pathlib import Path

import pytest

from lockkit.stores.sql.sqlite import SQLiteStore
from lockkit.testing.conformance import StoreConformance
from lockkit.testing.targets import Target


class TestSQLite(StoreConformance):
    schemes = ("sqlite",)
    tested = SQLiteStore
    cycles = 1000

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls, tmp_path_factory: pytest.TempPathFactory) -> Target:
        directory: Path = tmp_path_factory.mktemp("sqlite")
        return Target(f"sqlite:///{directory / 'locks.sqlite3'}")
