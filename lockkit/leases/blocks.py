"""``with``: what a thread or task has entered, and that a statement has ended without ``__exit__``.

An interrupt may come after the last line of the body and before the first one of ``__exit__``: then
nobody releases. But CPython looks ``__exit__`` up before it calls ``__enter__``, and keeps what it
has found as long as the statement lasts. Here that is an object of its own for each statement, so
whoever has a weak reference to it sees the end of the statement.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

L = TypeVar("L", bound="_Leases")
S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")

Block = weakref.ref[partial[Any]]
"""Dead when the statement has ended."""

_looked_up = threading.local()


class leaving(Generic[S, P, R]):  # noqa: N801  a decorator
    """Decorates an ``__exit__`` or ``__aexit__`` whose ``__enter__`` asks for the begun block."""

    def __init__(self, function: Callable[Concatenate[S, P], R]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, manager: None, kind: type[S]) -> Callable[Concatenate[S, P], R]: ...

    @overload
    def __get__(self, manager: S, kind: type[S]) -> Callable[P, R]: ...

    def __get__(
        self, manager: S | None, kind: type[S]
    ) -> Callable[P, R] | Callable[Concatenate[S, P], R]:
        if manager is None:
            return self._function
        found = partial(self._function, manager)
        _looked_up.last = weakref.ref(found)
        return found


def begun(manager: object) -> Block | None:
    """The statement whose ``__enter__`` calls this as the first thing; None: it is another caller,
    such as an ExitStack."""
    block: Block | None = getattr(_looked_up, "last", None)
    _looked_up.last = None
    found = None if block is None else block()
    return block if found is not None and found.args[0] is manager else None


class _Leases(Protocol):
    def _belong_to(self, block: Block | None) -> None: ...


def enter(entered: dict[int, list[L]], who: int, lease: L, block: Block | None) -> L:
    """Note what this thread or task has entered, for ``leave``."""
    lease._belong_to(block)
    entered.setdefault(who, []).append(lease)
    return lease


def unenter(entered: dict[int, list[L]], who: int, lease: L) -> None:
    """An interrupt came as it was noted, or just before."""
    leases = entered.get(who, [])
    if lease in leases:
        leases.remove(lease)
    if not leases:
        entered.pop(who, None)


def leave(entered: dict[int, list[L]], who: int) -> L:
    """The lease that this thread or task has entered last: many may enter one description.

    A thread that has entered nothing leaves for the one that did: two threads of a pool may run the
    two halves of a generator. If several have entered, nobody knows which.
    """
    if who not in entered:
        if len(entered) != 1:
            raise RuntimeError(
                f"this thread or task leaves a lock that {len(entered) or 'no'} others have "
                "entered: make a lock for each, or use `lease = lock.acquire()` and release it"
            )
        who = next(iter(entered))
    leases = entered[who].pop()
    if not entered[who]:
        del entered[who]
    return leases
