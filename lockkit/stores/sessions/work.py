"""Steps of a session, below those of the store: a wire performs each as one exchange.

A call that blocks has the session as its route, so the calls of a session are made one after the
other, also after one whose task was cancelled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

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
    firsts, results = dict[K, Effect](), dict[K, R | Exception]()
    try:
        for key, work in each.items():
            try:
                firsts[key] = next(work)
            except StopIteration as end:
                results[key] = end.value
        for key, effect in firsts.items():
            results[key] = yield from _rest(each[key], effect)
        return results
    finally:
        for work in each.values():
            work.close()


def _caught(work: Step[R]) -> Step[R | Exception]:
    try:
        return (yield from work)
    except (LockError, Refused) as error:
        return error


def _rest(work: Step[R], wanted: Effect) -> Step[R]:
    """Go on with a step that has yielded this effect."""
    try:
        while True:
            try:
                reply = yield wanted
            except LockError as error:
                wanted = work.throw(error)
            else:
                wanted = work.send(reply)
    except StopIteration as end:
        result: R = end.value
        return result
