"""All that is known of one name, a line for each fact."""

from __future__ import annotations

from collections.abc import Iterator

from lockkit.model.types import LockInfo, LockState
from lockkit.operate.commands.stores import Row
from lockkit.operate.commands.table import held_as, verdict
from lockkit.operate.commands.terminal import Console, duration, escape
from lockkit.operate.inspect import safe_to_break

__all__ = ["details"]

Fact = tuple[str, str]


def details(row: Row, console: Console) -> str:
    facts = [*_verdict(row, console), *_owner(row.info), *_times(row.info), *_queue(row.info)]
    if row.info.fence is not None:
        facts.append(("fence", str(row.info.fence)))
    return "".join(f"{key:10}{value}\n" for key, value in _with_colons(facts)) + "\n"


def _verdict(row: Row, console: Console) -> Iterator[Fact]:
    info = row.info
    yield "name", escape(info.name)
    yield "alias", escape(row.alias)
    yield "state", held_as(info)
    yield "verdict", console.red("STUCK") if row.stuck else verdict(row)
    if row.reason:
        yield "reason", escape(row.reason)
    if info.state is LockState.HELD:
        yield "break", _break(info)


def _break(info: LockInfo) -> str:
    """In one line: whether it is safe, what is known, and who waits for it."""
    waiting = info.waiting
    if waiting is None:
        return f"{safe_to_break(info).why}; nobody waits"
    return (
        f"{safe_to_break(info).why}; {info.waiters_alive} wait, the first for {duration(waiting)}"
    )


def _owner(info: LockInfo) -> Iterator[Fact]:
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
    if info.state is LockState.ORPHAN:
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


def _with_colons(facts: list[Fact]) -> Iterator[Fact]:
    for key, value in facts:
        yield (f"{key}:" if key else ""), value
