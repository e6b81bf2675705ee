"""An operator's changes: ``locks release``, ``release --damaged`` and ``resolve``.

Each shows what it would change, asks, and changes exactly that. The store compares again in the
step that makes the change, so nothing happens if the name went to somebody else while the operator
was reading. Every attempt is logged for each lease, with who made it and why.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NamedTuple

from lockkit.leases.client import LockClient
from lockkit.model.names import repair_command
from lockkit.model.types import LockInfo, LockState
from lockkit.operate.caution import DRY_RUN, audit, operator, refusal
from lockkit.operate.columns import details
from lockkit.operate.console import Console, Exit, UsageError
from lockkit.operate.inspect import RESOLVED, Process, process_of
from lockkit.operate.stores import Row, Stores
from lockkit.operate.text import escape, printable


class _Change(NamedTuple):
    """One kind of change, and the texts that the operator reads."""

    command: str
    verb: str
    done: str
    state: str  #: the state of the names that it can change
    concerns: Callable[[LockInfo], bool]  #: whether it can change this lease
    question: str
    make: Callable[[LockClient, LockInfo, str], bool]  #: False: no longer as shown
    changed: str  #: why it was not done, if ``make`` returned False
    success: str
    as_: str = ""  #: done or retry, for the log


def release(arguments: argparse.Namespace, stores: Stores, console: Console) -> Exit:
    """Release one lease, or all that its owner holds under one fencing token; or repair it."""
    kind = _REPAIR if arguments.damaged else _GIVE_TTL if arguments.missing_ttl else _RELEASE
    return _change(kind, arguments, stores, console)


def _is_endless(info: LockInfo) -> bool:
    return info.state is LockState.HELD and info.left is None


def _is_repaired_by_name(info: LockInfo) -> bool:
    """Whether it is damaged, and ``--damaged`` repairs it: not a key that many names share, nor one
    of another program."""
    return info.state is LockState.DAMAGED and repair_command(info.name, "") in info.damage


def _repaired(client: LockClient, info: LockInfo, by: str) -> bool:
    """Delete the record of the lock, and that of its order."""
    name, done = info.name, client.repair(info.name, by=by, shown=info)
    if client.store.records() is None:
        return done
    from lockkit.orders import redis_records

    return redis_records.repair(client, name, by=by) or done


_RELEASE = _Change(
    "release", "release", "released", "held",
    lambda info: info.fence is not None and info.state in (LockState.HELD, LockState.ABANDONED),
    "Release this lease? Its holder is not stopped.",
    lambda client, info, by: client.break_(info.name, fence=info.fence or 0, by=by),
    "it is no longer the lease that was shown",
    "released; its holder was not stopped",
)  # fmt: skip

_REPAIR = _Change(
    "release --damaged", "delete", "deleted", "damaged",
    _is_repaired_by_name,
    "Delete the record of this name? If somebody holds it, somebody else can get it as well.",
    _repaired,
    "it can be read now, or the lock of the order is held",
    "deleted",
)  # fmt: skip
"""A record that can be read is never deleted."""

_GIVE_TTL = _Change(
    "release --missing-ttl", "repair", "repaired", "without a TTL",
    _is_endless,
    "Give this lock a TTL? If its holder lives and does not renew it, somebody else gets it.",
    lambda client, info, by: client.repair(info.name, by=by, shown=info),
    "it has a TTL now, or somebody else has it, or nobody",
    "repaired: it has the TTL of its alias",
)  # fmt: skip
"""Gives the alias's TTL to a key that another client left without one."""


def resolve(arguments: argparse.Namespace, stores: Stores, console: Console) -> Exit:
    """Say how an orphan ended."""
    from lockkit.orders.redis_records import resolve as resolved

    done = arguments.done
    kind = _Change(
        "resolve", "resolve", "resolved", "an orphan",
        lambda info: info.state is LockState.ORPHAN,
        "Did this order take effect? Its duplicates will be told that it did." if done else
        "The next request with this ID will run the order again. Are you sure that it did not take "
        "effect?",
        lambda client, info, by: resolved(
            client, info, done=done, by=f"{RESOLVED}{'done' if done else 'retry'}: {by}"
        ),
        "it is no longer the orphan that was shown",
        "resolved: done" if done else "resolved: it may be tried again",
        "done" if done else "retry",
    )  # fmt: skip
    return _change(kind, arguments, stores, console)


def _change(kind: _Change, arguments: argparse.Namespace, stores: Stores, console: Console) -> Exit:
    """Show, ask, compare and change. Never more than one name."""
    aliases = stores.select(None if arguments.alias is None else [arguments.alias])
    rows = stores.of_name(aliases, arguments.name)
    if (ending := stores.ending(of_named=bool(arguments.alias))) is not Exit.OK:
        choose = ". Choose one with --alias" if len(aliases) > 1 else ""
        unasked = _unasked(arguments.name, rows, stores)
        console.complain(f"nothing was {kind.done}: {unasked}{choose}")
        return ending
    _check_name(arguments, rows)
    meant = [row for row in rows if kind.concerns(row.info)]
    if not meant:
        why = _nothing(kind, rows, stores.where(aliases))
        hint = _hint(kind, arguments.name)
        console.complain(f"nothing to {kind.verb}: {escape(arguments.name)} {printable(why)}{hint}")
        return Exit.ERROR
    chosen = _chosen(meant, kind, arguments.fence)
    for row in chosen:
        console.report(details(row, console))
    if kind is _RELEASE and all(process_of(row.info.owner) is Process.GONE for row in chosen):
        kind = kind._replace(question="Release this lease?", success="released")  # nobody to stop
    why_not = _why_not(chosen[0].info, kind, arguments, console)
    if why_not is None and not _made(kind, chosen, arguments.reason, stores):
        why_not = f": {kind.changed}"
    if why_not is not None:
        console.complain(f"not {kind.done}{why_not}")
        return Exit.OK if why_not == DRY_RUN else Exit.ERROR
    console.report(f"{kind.success}\n")
    return Exit.OK


def _nothing(kind: _Change, rows: list[Row], where: str) -> str:
    """Why none of these rows can be changed."""
    states = {row.info.state for row in rows if row.is_now}
    if kind is _GIVE_TTL:
        return f"has a TTL, or nobody holds it in {where}"
    damage = next((row.info.damage for row in rows if row.info.state is LockState.DAMAGED), None)
    if damage is not None and kind.verb != "resolve":
        return f"is damaged: {escape(damage)}"
    if kind.verb != "release":
        return f"is not {kind.state} in {where}"
    if LockState.ORPHAN in states:
        return "is an orphan, see locks resolve"
    if any(_is_endless(row.info) for row in rows):
        return "has no TTL; --missing-ttl gives it one"
    return "has no holder with a fencing token" if states else f"is free in {where}"


def _hint(kind: _Change, name: str) -> str:
    """A likely mistake in the name, if nothing with this name can be changed."""
    if set(name) & set("*?["):
        return "; give one exact name, not a pattern"
    is_id = kind.verb == "resolve" and not name.startswith("order:")
    return "; an order ID is not enough: give the NAME that is listed, order:…" if is_id else ""


def _unasked(name: str, rows: list[Row], stores: Stores) -> str:
    """Where the name was found, and the aliases that could not be asked and may have it, too."""
    also = ", ".join(map(escape, [*stores.down, *stores.wrong]))
    found = ", ".join(dict.fromkeys(escape(row.alias) for row in rows))
    seen = f"is in {found}, and may be in {also} as well" if found else f"may be in {also}"
    return f"{escape(name)} {seen}"


def _check_name(arguments: argparse.Namespace, rows: list[Row]) -> None:
    """Raise UsageError if a clipped name fits several names, or if it fits one that nobody would
    look at: with --yes and without --fence."""
    infos = [row.info for row in rows]
    fit = [i for i in infos if i.state is not LockState.DAMAGED or _is_repaired_by_name(i)]
    name, names = escape(arguments.name), list(dict.fromkeys(info.name for info in fit))
    if len(names) > 1:
        raise UsageError(f"{name} is clipped, and fits {', '.join(map(escape, names))}")
    is_clipped = names not in ([], [arguments.name])
    if is_clipped and arguments.yes and arguments.fence is None:
        raise UsageError(f"{name} is clipped: with --yes give the whole name, {escape(names[0])}")


def _chosen(rows: list[Row], kind: _Change, fence: int | None) -> list[Row]:
    """The rows of one fencing token in one alias. Raises UsageError if it is not clear which."""
    name, aliases = escape(rows[0].info.name), dict.fromkeys(escape(row.alias) for row in rows)
    if len(aliases) > 1:
        among = ", ".join(aliases)
        raise UsageError(
            f"{name} is {kind.state} in several aliases ({among}): choose one with --alias"
        )
    fences = {row.info.fence for row in rows}
    if len(fences) > 1 and fence is None:
        raise UsageError(
            f"{name} is {kind.state} by {len(rows)} at once: choose one with --fence; "
            "`locks show` lists them"
        )
    one = fence if fence in fences else rows[0].info.fence
    return [row for row in rows if row.info.fence == one]


def _why_not(
    info: LockInfo, kind: _Change, arguments: argparse.Namespace, console: Console
) -> str | None:
    """A reason not to do it; None to go on. Raises UsageError if there is no terminal to ask at,
    or if ``--fence`` was given and the fencing token cannot be read."""
    if arguments.fence is not None and info.fence != arguments.fence:
        if info.fence is None:
            raise UsageError("its fencing token cannot be read, so --fence cannot be compared")
        return f": its fencing token is {info.fence}, not {arguments.fence}"
    return refusal(kind.question, arguments, console)


def _made(kind: _Change, rows: list[Row], reason: str | None, stores: Stores) -> bool:
    """Make the change, and log who made it and the outcome."""
    by = f"{operator()}: {reason or 'no reason given'}"
    try:
        done = kind.make(stores.client(rows[0].alias), rows[0].info, by)
    except BaseException as error:  # also an interrupt: the change may have been made
        _audit(kind, rows, reason, f"unknown: {type(error).__name__}")
        raise
    _audit(kind, rows, reason, kind.done if done else f"not {kind.done}: it had changed")
    return done


def _audit(kind: _Change, rows: list[Row], reason: str | None, outcome: str) -> None:
    for alias, info, stuck in rows:
        facts = {
            "alias": alias,
            "name": info.name,
            "fence": info.fence,
            "owner": info.owner or "-",
            "state": info.state.value,
            "stuck": stuck.code if stuck else "-",
            **({"as": kind.as_} if kind.as_ else {}),
            "reason": reason or "-",
        }
        audit(kind.command, outcome, facts)
