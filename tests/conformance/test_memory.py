from __future__ import annotations

import pytest

from lockkit.testing.conformance import BackendConformance, Needs
from lockkit.testing.store import Store


class TestMemory(BackendConformance):
    schemes = ("memory",)
    provides = Needs.SHARED

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls) -> Store:
        return Store("memory://conformance")
