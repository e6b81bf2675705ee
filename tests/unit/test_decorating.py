"""How a decorator was written, as far as that can be known for certain."""

from __future__ import annotations

from typing import Any

import pytest

import lockkit

DEFINED = "def name(sku):\n    return f'stock:{sku}'\n"


def test_a_name_that_was_defined_at_a_prompt_is_no_decorated_function() -> None:
    """Every input of a prompt begins at line 1 of the same file."""
    names: dict[str, Any] = {"lockkit": lockkit}
    exec(compile(DEFINED, "<stdin>", "exec"), names)
    exec(compile("decorate = lockkit.locked(name)", "<stdin>", "exec"), names)
    assert callable(names["decorate"])


def test_a_name_that_is_defined_above_its_use_is_none_either() -> None:
    def name(sku: str) -> str:
        return f"stock:{sku}"

    @lockkit.locked(name)
    def deduct(sku: str) -> str:
        return sku

    assert deduct.__name__ == "deduct"


def test_other_decorators_between_hide_nothing() -> None:
    with pytest.raises(lockkit.ConfigurationError, match="write @locked"):

        @lockkit.locked
        @lockkit.locked("stock")
        def deduct() -> None: ...
