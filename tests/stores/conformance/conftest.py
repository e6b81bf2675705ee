from __future__ import annotations

import over_a_wire
import pytest
from over_a_wire import is_asked


def pytest_configure(config: pytest.Config) -> None:
    """Before a class of this directory chooses its tests."""
    over_a_wire.whole = config.getoption("whole")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.hook.pytest_deselected(items=[item for item in items if not is_asked(item)])
    items[:] = filter(is_asked, items)
