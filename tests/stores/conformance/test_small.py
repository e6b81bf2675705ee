"""The store that docs/writing-a-store.md shows, which declares next to nothing."""

from __future__ import annotations

import re
import sys
from types import ModuleType
from typing import Any

import pytest
from places import ROOT

from lockkit.testing.conformance import StoreConformance
from lockkit.testing.store import Store

MODULE = "store_of_the_docs"
MOST_LINES = 80


def written() -> str:
    page = (ROOT / "docs" / "writing-a-store.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]


def of_the_docs() -> Any:
    module = sys.modules[MODULE] = ModuleType(MODULE)
    exec(compile(written(), MODULE, "exec"), module.__dict__)
    return module.__dict__["SmallStore"]


SmallStore = of_the_docs()


def test_it_is_small() -> None:
    assert len(written().splitlines()) < MOST_LINES


class TestSmall(StoreConformance):
    schemes = ("small",)
    tested = SmallStore

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls) -> Store:
        """All clients have the same one, as processes have one server."""
        shared = SmallStore()
        SmallStore.from_settings = classmethod(lambda *_: shared)
        return Store("small://", options={"backend": f"{MODULE}:SmallStore"})
