from __future__ import annotations

import pytest

from lockkit.stores.memory import MemoryStore
from lockkit.testing.conformance import StoreConformance
from lockkit.testing.targets import Target


class TestMemory(StoreConformance):
    schemes = ("memory",)
    tested = MemoryStore

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls) -> Target:
        return Target("memory://conformance")
