"""The object that a ``with`` statement keeps from its beginning to its end. It keeps the lease.

An interrupt may come between the last line of the body and the first line of ``__exit__``. Then
nothing releases the lease. But CPython looks up ``__exit__`` before it calls ``__enter__``, and
keeps the object that it has found until the statement ends. Here each lookup makes a new object. It
keeps the lease for ``__exit__``, and a weak reference to it shows whether the statement has ended.

``contextlib.ExitStack``, its asyncio twin and ``unittest``'s ``enterContext`` do the same, but look
up both methods on the class, ``__enter__`` first. So the object learns only in the call of
``__enter__`` which lock it is for. ``ExitStack.push`` looks up ``__exit__`` alone, for a lock that
was entered before: a call of ``lock.__enter__()`` must not take its object.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

Block = weakref.ref[partial[Any]]
"""Refers to the object that a ``with`` statement or a stack keeps: dead when that has ended."""

_looked_up: dict[int, Block] = {}
"""That object by thread, from the lookup of ``__exit__`` to ``__enter__``. Not in a
``threading.local``, which would take half a kilobyte of each thread for good."""


def entering(function: F) -> F:
    """Decorates an ``__enter__`` or ``__aenter__``. If it was looked up on the class, it is called
    with ``by_class=True``."""
    return cast("F", _Entering(function))


def leaving(function: F) -> F:
    """Decorates an ``__exit__`` or ``__aexit__`` whose ``__enter__`` calls ``begun``."""
    return cast("F", _Leaving(function))


def begun(manager: object, *, by_class: bool = False) -> Block | None:
    """The statement that calls ``__enter__``, which must call this first of all. None:
    ``__enter__`` has another caller."""
    block = _looked_up.pop(threading.get_ident(), None)
    found = None if block is None else block()
    if found is None:
        return None
    is_ours = found.args[0] is manager if found.args else by_class
    return block if is_ours else None


class _Entering:
    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._by_class = partial(function, by_class=True)
        self.__doc__ = function.__doc__

    def __get__(self, manager: object, kind: type) -> Callable[..., Any]:
        if manager is not None:
            return MethodType(self._function, manager)
        _looked_up.pop(threading.get_ident(), None)  # what is looked up next belongs to it
        return self._by_class


class _Leaving:
    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __get__(self, manager: object, kind: type) -> Callable[..., Any]:
        found = partial(self._function, *(() if manager is None else (manager,)))
        _looked_up[threading.get_ident()] = weakref.ref(found)
        return found
