"""Steps of a session, below those of the store: a wire performs each as one exchange.

A call that blocks has the session as its route, so the calls of a session are made one after the
other, also after one whose task was cancelled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from lockkit.engine.effects import Effect, Step
from lockkit.model.errors import LockError
from lockkit.stores.sessions.connection import Connection, Refused

K = TypeVar("K")
R = TypeVar("R")


class Ready(NamedTuple):
    """A payload: wait until this connection can be read from, or until that moment."""

    connection: Connection
    until: float  #: by the local clock


def together(works: Mapping[K, Step[R]]) -> Step[dict[K, R | Exception]]:
    """Perform all at once; returns the result or the error of each. All requests are sent before
    any reply is read.

    An interrupt, which may be any exception, is not the error of one of them: it ends all."""
    each = {key: _caught(work) for key, work in works.items()}
    try:
        firsts = {key: _first(work) for key, work in each.items()}
        results = {}
        for key, work in each.items():
            results[key] = yield from _rest(work, firsts[key])
        return results
    finally:
        for work in each.values():
            work.close()


class _Over(NamedTuple):
    value: Any


def _caught(work: Step[R]) -> Step[R | Exception]:
    try:
        return (yield from work)
    except (LockError, Refused) as error:
        return error


def _first(work: Step[Any]) -> Effect | _Over:
    try:
        return next(work)
    except StopIteration as end:
        return _Over(end.value)


def _rest(work: Step[R], wanted: Effect | _Over) -> Step[R]:
    while not isinstance(wanted, _Over):
        try:
            try:
                reply = yield wanted
            except LockError as error:
                wanted = work.throw(error)
            else:
                wanted = work.send(reply)
        except StopIteration as end:
            wanted = _Over(end.value)
    result: R = wanted.value
    return result
