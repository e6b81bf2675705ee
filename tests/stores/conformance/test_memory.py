from __future__ import annotations

import pytest

from lockkit.testing.conformance import KINDS, StoreConformance
from lockkit.testing.store import Store


class TestMemory(StoreConformance):
    schemes = ("memory",)
    provides = KINDS

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls) -> Store:
        return Store("memory://conformance")
