"""``@lock_view`` and ``@locked`` without their parentheses say what to write, at once."""

from __future__ import annotations

from typing import Any

import pytest

from lockkit.model.errors import ConfigurationError
from lockkit_django import lock_view, locked


@pytest.mark.parametrize("decorator", [lock_view, locked])
def test_what_to_write_is_said(decorator: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"write @lock\w+\('stock:\{sku\}'\)"):

        @decorator
        def deduct(request: Any, sku: str) -> str:
            return sku


def test_a_method_is_told_so_too() -> None:
    with pytest.raises(ConfigurationError, match="write @lock_view"):

        class Stock:
            @lock_view  # type: ignore[arg-type]
            def post(self, request: Any) -> None: ...
