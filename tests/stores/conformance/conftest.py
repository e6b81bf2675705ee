from __future__ import annotations

import pytest
from over_a_wire import is_asked


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.hook.pytest_deselected(items=[item for item in items if not is_asked(item)])
    items[:] = filter(is_asked, items)
