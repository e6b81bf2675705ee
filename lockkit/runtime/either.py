"""Code that serves blocking and asyncio clients: a coroutine that awaits what can be awaited.

With what blocks it awaits nothing, so it ends at once, like any function.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar, cast

R = TypeVar("R")
T = TypeVar("T")


async def value(found: T | Awaitable[T]) -> T:
    """The value itself, or the result of awaiting it."""
    return await found if isinstance(found, Awaitable) else found


def at_once(doing: Coroutine[Any, Any, R]) -> R:
    """What a coroutine returns that awaits nothing."""
    try:
        doing.send(None)
    except StopIteration as end:
        return cast("R", end.value)
    raise TypeError("what a blocking client does must not be awaited")
