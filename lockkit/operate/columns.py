"""How a lock is shown: the columns of the tables, the keys of JSON, the lines of ``show``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from lockkit.model.types import Kind, LockInfo, LockState, Owner
from lockkit.operate.console import Console
from lockkit.operate.inspect import process_of, safe_to_break
from lockkit.operate.stores import Row
from lockkit.operate.text import duration, escape


class Column(NamedTuple):
    """One column of a table."""

    title: str
    cell: Callable[[Row], str]
    least: int = 0  #: least width, so that a later page seldom needs a wider column than the first
    right: bool = False


def _state(info: LockInfo) -> str:
    """The state; for a semaphore or a reader-writer lock, the way in which it is held."""
    if info.state is not LockState.HELD:
        return info.state.value
    if info.kind is Kind.RW:
        return "read" if info.shared else "write"
    return "permit" if info.kind is Kind.SEMAPHORE else info.state.value


def _verdict(row: Row) -> str:
    """What an operator should make of the state."""
    return "STUCK" if row.stuck else "info" if row.reason else "ok"


def _owner(row: Row) -> str:
    return escape(str(row.info.owner)) if row.info.owner else "-"


def _left(row: Row) -> str:
    info = row.info
    if info.left is None and (info.owner is not None or info.age is not None):
        return "none"
    return duration(info.left)


def _waiters(row: Row) -> str:
    alive, every = row.info.waiters_alive, row.info.waiters
    return str(every) if alive == every else f"{alive}/{every}"


def _fence(row: Row) -> str:
    return "-" if row.info.fence is None else str(row.info.fence)


ALIAS = Column("ALIAS", lambda row: escape(row.alias), 7)
NAME = Column("NAME", lambda row: escape(row.info.name), 16)
VERDICT = Column("VERDICT", _verdict)
OWNER = Column("OWNER", _owner, 24)
FENCE = Column("FENCE", _fence, 16, right=True)
TABLE = (
    ALIAS,
    NAME,
    Column("STATE", lambda row: _state(row.info), 9),
    VERDICT,
    OWNER,
    Column("AGE", lambda row: duration(row.info.age), 6, right=True),
    Column("LEFT", _left, 6, right=True),
    Column("WAITERS", _waiters, right=True),
    FENCE,
)
WIDE = (
    *TABLE,
    Column("THREAD", lambda row: escape(row.info.owner.thread) if row.info.owner else "-", 10),
    Column("RENEWED", lambda row: duration(row.info.renewed), right=True),
    Column("TTL", lambda row: duration(row.info.ttl), 6, right=True),
    Column("MAX-HOLD", lambda row: duration(row.info.max_hold), right=True),
    Column("KIND", lambda row: row.info.used_as, 5),
)


def as_json(row: Row) -> dict[str, Any]:
    """One lock as JSON. Durations are seconds; docs/command.md explains each key."""
    info = row.info
    return {
        "alias": row.alias,
        "name": info.name,
        "state": info.state.value,
        "verdict": _verdict(row).lower(),
        "stuck": row.stuck.code if row.stuck else None,
        "reason": row.reason,
        "owner": _owner_as_json(info.owner) if info.owner else None,
        "age": info.age,
        "left": info.left,
        "renewed": info.renewed,
        "ttl": info.ttl,
        "max_hold": info.max_hold,
        "waiters": info.waiters,
        "waiters_alive": info.waiters_alive,
        "fence": info.fence,
        "kind": info.kind.value,
        "permits": info.permits or None,
        "shared": info.shared,
        "process": process_of(info.owner).value,
        "safe_to_break": safe_to_break(info).safe,
        "broken_by": info.broken_by or None,
        "waiting": info.waiting,
        "queue": [
            {"owner": _owner_as_json(each.owner), "since": each.since, "alive": each.alive}
            for each in info.queue
        ],
    }


def _owner_as_json(owner: Owner) -> dict[str, Any]:
    return {"host": owner.host, "pid": owner.pid, "thread": owner.thread, "label": owner.label}


def details(row: Row, console: Console) -> str:
    """Everything about one lock, with a line for each fact."""
    facts = [*_judged(row, console), *_times(row.info), *_queue(row.info)]
    if row.info.fence is not None:
        facts.append(("fence", str(row.info.fence)))
    return "".join(f"{key + ':' if key else '':10}{value}\n" for key, value in facts) + "\n"


Fact = tuple[str, str]


def _judged(row: Row, console: Console) -> Iterator[Fact]:
    info = row.info
    yield "name", escape(info.name)
    yield "alias", escape(row.alias)
    yield "state", _state(info)
    yield "verdict", console.red(_verdict(row)) if row.stuck else _verdict(row)
    if row.reason:
        yield "reason", escape(row.reason)
    if info.state is LockState.HELD:
        number, first = info.waiters_alive, duration(info.waiting)
        waiting = f"{number} are waiting, the first" if number > 1 else "1 has waited"
        told = f"{waiting} for {first}" if number else "nobody waits"
        yield "break", f"{safe_to_break(info).why}; {told}"
    if info.owner:
        yield "owner", escape(str(info.owner))
        yield "thread", escape(info.owner.thread)


def _times(info: LockInfo) -> Iterator[Fact]:
    if info.age is None:
        return
    yield "age", duration(info.age)
    if info.state is LockState.ORPHAN:
        yield "expires", f"in {duration(info.left)}"
        return
    yield "left", "none" if info.left is None else duration(info.left)
    yield "renewed", f"{duration(info.renewed)} ago"
    yield "ttl", duration(info.ttl)
    yield "max hold", duration(info.max_hold)


def _queue(info: LockInfo) -> Iterator[Fact]:
    if info.state in (LockState.ORPHAN, LockState.DAMAGED):
        return
    yield "kind", info.used_as
    if info.state is LockState.LOST:
        return
    yield "waiters", f"{info.waiters} ({info.waiters_alive} alive)"
    for place, each in enumerate(info.queue, 1):
        since = f"waits {duration(each.since)}" if each.alive else "is dead"
        yield "queue" if place == 1 else "", f"{place}. {escape(str(each.owner))} {since}"
    if 0 < len(info.queue) < info.waiters:
        yield "", f"and {info.waiters - len(info.queue)} more"
