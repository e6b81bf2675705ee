"""What a session is asked: a generator of what it waits for, so that threads and tasks are served
by the same code. See ``wire``."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Mapping
from typing import Any, NamedTuple, TypeVar

from lockkit.engine.effects import Park
from lockkit.model.clock import now
from lockkit.runtime.wires import Lane
from lockkit.stores.sessions.connection import Connection

K = TypeVar("K")
R = TypeVar("R")


class Ready(NamedTuple):
    """Wait until something can be read from this connection, at most so long."""

    connection: Connection
    seconds: float


class Blocking(NamedTuple):
    """Do what blocks, and is over soon. Those of one route are done one after the other, also after
    one whose task was cancelled."""

    function: Callable[[], object]
    route: Hashable
    lane: Lane = Lane.ENDING


Wanted = Ready | Blocking | Park
Work = Generator[Wanted, Any, R]


def together(works: Mapping[K, Work[R]]) -> Work[dict[K, R | Exception]]:
    """All at once, each with what came of it: their requests are sent before any reply is read."""
    each = {key: _caught(work) for key, work in works.items()}
    try:
        firsts = {key: _first(work) for key, work in each.items()}
        results, sent = {}, now()
        for key, work in each.items():
            results[key] = yield from _rest(work, _left(firsts[key], sent))
        return results
    finally:
        for work in each.values():
            work.close()


class _Over(NamedTuple):
    value: Any


def _caught(work: Work[R]) -> Work[R | Exception]:
    try:
        return (yield from work)
    except Exception as error:  # noqa: BLE001  it is a result
        return error


def _first(work: Work[Any]) -> Wanted | _Over:
    try:
        return next(work)
    except StopIteration as end:
        return _Over(end.value)


def _left(wanted: Wanted | _Over, since: float) -> Wanted | _Over:
    """What it waits for, less the time for which others were waited for."""
    if isinstance(wanted, Ready):
        return wanted._replace(seconds=max(wanted.seconds - (now() - since), 0.0))
    return wanted


def _rest(work: Work[R], wanted: Wanted | _Over) -> Work[R]:
    while not isinstance(wanted, _Over):
        try:
            try:
                reply = yield wanted
            except Exception as error:  # noqa: BLE001  it is for this one
                wanted = work.throw(error)
            else:
                wanted = work.send(reply)
        except StopIteration as end:
            wanted = _Over(end.value)
    result: R = wanted.value
    return result
