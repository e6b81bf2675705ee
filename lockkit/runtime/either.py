"""Code that serves blocking and asyncio clients: a coroutine that awaits what can be awaited.

With what blocks it awaits nothing, so it ends at once, like any function.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

R = TypeVar("R")
T = TypeVar("T")


async def value(found: T | Awaitable[T]) -> T:
    """The value itself, or the result of awaiting it."""
    if hasattr(type(found), "__await__"):  # which is quicker to see than an Awaitable
        return await found  # type: ignore[misc,no-any-return]
    return found  # type: ignore[return-value]


def at_once(doing: Coroutine[Any, Any, R]) -> R:
    """What a coroutine returns that awaits nothing."""
    try:
        doing.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise TypeError("what a blocking client does must not be awaited")
