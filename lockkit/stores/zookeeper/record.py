"""What a node tells people: who has it, and for how long. No decision depends on it."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from lockkit.engine.last_words import QUEUE_SHOWN
from lockkit.model.types import LockInfo, LockState, Owner, Request, Waiting

MOST = 1e15
"""A greater value, or one that is not a number, is not a time in milliseconds or a duration."""


class Seen(NamedTuple):
    """A node's data and stat."""

    data: dict[str, Any]
    stat: Any


def data_of(request: Request) -> dict[str, Any]:
    return {"owner": request.owner, "ttl": request.ttl, "max_hold": request.max_hold}


def encoded(data: dict[str, Any]) -> bytes:
    return json.dumps(data).encode()


def decoded(data: bytes | None) -> dict[str, Any]:
    """Empty if it cannot be read: anybody who may write there could have written it. ZooKeeper has
    None for data, too."""
    try:
        found = json.loads(data or b"")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def seen(answer: Any) -> Seen | None:
    """What was read; None: it is gone."""
    return None if isinstance(answer, Exception) else Seen(decoded(answer[0]), answer[1])


def holder_of(answer: Any = None) -> str:
    """The owner of a node that was read, for people. Empty: it is not known."""
    found = seen(answer) if answer is not None else None
    return _text(found.data, "owner") if found else ""


def info_of(name: str, queue: list[Seen], length: int, base: int, now: float) -> LockInfo:
    """The first of the queue holds it, unless it still has to notice that. ``now``: the wall clock
    here, because the servers do not tell theirs.

    The session of each node is alive, or has not been silent for its timeout yet.
    """
    data, stat = queue[0]
    granted = data.get("granted", stat.ctime)
    if granted is None:
        return LockInfo(
            name, LockState.QUEUED, waiters=length, waiters_alive=length, queue=_waiting(queue, now)
        )
    ttl, renewed = _number(data, "ttl"), _since(stat.mtime, now)
    return LockInfo(
        name=name,
        state=LockState.HELD,
        owner=_owner(data),
        fence=base + stat.czxid,
        age=_since(_number(data, "granted") or (stat.mtime if "granted" in data else granted), now),
        left=None if ttl is None else ttl - renewed,
        renewed=renewed,
        ttl=ttl,
        max_hold=_number(data, "max_hold"),
        waiters=length - 1,
        waiters_alive=length - 1,
        queue=_waiting(queue[1:], now),
    )


def lost_info(data: dict[str, Any], ago: float) -> LockInfo:
    """The last words of a lease that an operator released ``ago`` seconds ago."""
    fence = data.get("fence")
    return LockInfo(
        name=_text(data, "name"),
        state=LockState.LOST,
        owner=_owner(data),
        fence=fence if isinstance(fence, int) else None,
        left=-ago,
        broken_by=_text(data, "by"),
    )


def _waiting(queue: list[Seen], now: float) -> tuple[Waiting, ...]:
    return tuple(
        Waiting(_owner(data) or Owner("", 0, ""), _since(stat.ctime, now), True)
        for data, stat in queue[:QUEUE_SHOWN]
    )


def _since(milliseconds: float, now: float) -> float:
    return max(now - milliseconds / 1000, 0.0)


def _owner(data: dict[str, Any]) -> Owner | None:
    text = _text(data, "owner")
    return Owner.decode(text) if text else None


def _text(data: dict[str, Any], key: str) -> str:
    value = data.get(key)
    return value if isinstance(value, str) else ""


def _number(data: dict[str, Any], key: str) -> float | None:
    value = data.get(key)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return value if abs(value) < MOST else None
