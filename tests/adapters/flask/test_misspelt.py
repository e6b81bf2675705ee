"""A misspelt option of a decorator is said when the view is decorated, with the nearest one."""

from __future__ import annotations

from typing import Any

import pytest

from lockkit.model.errors import ConfigurationError
from lockkit_flask import idempotent, lock_view


@pytest.mark.parametrize(
    ("decorator", "options", "told"),
    [
        (lock_view, {"timout": 1}, "lock_view has no option 'timout': did you mean 'timeout'?"),
        (lock_view, {"on_busi": print}, "did you mean 'on_busy'?"),
        (idempotent, {"requird": True}, "@idempotent has no option 'requird': did you mean 'requ"),
        (idempotent, {"where": "x"}, "@idempotent has no option 'where'"),
        (idempotent, {"atomic": False}, "it has order_id, required, using"),
    ],
)
def test_the_nearest_is_named(decorator: Any, options: dict[str, Any], told: str) -> None:
    names = ["a"] if decorator is lock_view else []
    with pytest.raises(ConfigurationError) as raised:
        decorator(*names, **options)
    assert told in str(raised.value)


def test_on_busy_must_be_a_function() -> None:
    with pytest.raises(ConfigurationError, match=r"on_busy of lock_view is 'busy\.html'"):
        lock_view("a", on_busy="busy.html")  # type: ignore[arg-type]
