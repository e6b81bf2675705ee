"""``locks release NAME``: an operator's release of exactly the lease that was displayed.

The store compares the fencing token in the step that releases, so a name that was released and
taken by somebody else while the operator was reading stays with its new holder.
"""

from __future__ import annotations

import argparse

from lockkit.model.errors import BackendError
from lockkit.model.types import LockState
from lockkit.operate.commands.audit import audit, operator
from lockkit.operate.commands.details import details
from lockkit.operate.commands.exits import Exit, UsageError
from lockkit.operate.commands.stores import Row, Stores, is_now
from lockkit.operate.commands.terminal import Console, escape, printable

__all__ = ["asked_alone", "confirmed", "release"]


def release(arguments: argparse.Namespace, stores: Stores, console: Console) -> Exit:
    """Show, ask, compare and release. Never more than one lease."""
    aliases = stores.select([arguments.alias] if arguments.alias else None)
    rows = stores.one_name(aliases, arguments.name)
    if not asked_alone(rows, arguments, stores, console, "released"):
        return stores.ending()
    held = [row for row in rows if _is_held(row)]
    if not held:
        found = [row for row in rows if is_now(row)]
        console.complain(_nothing(arguments.name, found, printable(stores.where(aliases))))
        return Exit.ERROR
    return _release(_only(held, arguments), arguments, stores, console)


def asked_alone(
    rows: list[Row], arguments: argparse.Namespace, stores: Stores, console: Console, done: str
) -> bool:
    """Whether all aliases have answered: else the name may be in one that could not be asked. Then
    it says what it does not do. Raises UsageError for a clipped name that nobody will look at."""
    silent = [*stores.down, *stores.wrong]
    if silent:
        name = escape(arguments.name)
        also = ", ".join(map(escape, silent))
        found = ", ".join(dict.fromkeys(escape(row.alias) for row in rows))
        seen = f"{name} is in {found}, and may be in {also} as well" if found else (
            f"{name} may be in {also}"
        )  # fmt: skip
        console.complain(f"nothing was {done}: {seen}. Say which is meant with --alias")
        return False
    is_clipped = any(row.info.name != arguments.name for row in rows)
    if is_clipped and arguments.yes and arguments.fence is None:
        raise UsageError(
            f"{escape(arguments.name)} is clipped: with --yes say the whole name, "
            f"{escape(rows[0].info.name)}"
        )
    return True


def _only(held: list[Row], arguments: argparse.Namespace) -> list[Row]:
    """The one to release, or all that its owner holds by one fencing token. Raises UsageError if
    that is not clear."""
    name, aliases = escape(held[0].info.name), list(dict.fromkeys(row.alias for row in held))
    if len(aliases) > 1:
        raise UsageError(
            f"{name} is held in several aliases ({', '.join(map(escape, aliases))}): "
            "say which with --alias"
        )
    fences = {row.info.fence for row in held}
    if len(fences) > 1 and arguments.fence is None:
        raise UsageError(
            f"{name} is held by {len(held)} at once: say which with --fence, as in `locks show`"
        )
    fence = arguments.fence if arguments.fence in fences else held[0].info.fence
    return [row for row in held if row.info.fence == fence]


def _is_held(row: Row) -> bool:
    return row.info.fence is not None and row.info.state in (LockState.HELD, LockState.ABANDONED)


def _release(
    rows: list[Row], arguments: argparse.Namespace, stores: Stores, console: Console
) -> Exit:
    fence = rows[0].info.fence
    assert fence is not None
    for row in rows:
        console.write(details(row, console))
    console.flush()
    if arguments.fence not in (None, fence):
        console.complain(f"not released: its fencing token is {fence}, not {arguments.fence}")
        return Exit.ERROR
    if arguments.dry_run:
        console.complain("not released: this was a dry run")
        return Exit.OK
    if not confirmed(arguments, console, "Release this lease? Its holder is not stopped."):
        console.complain("not released")
        return Exit.ERROR
    if not _broken(rows, fence, arguments.reason, stores):
        console.complain("not released: it is not the lease that was shown any more")
        return Exit.ERROR
    console.write("released; its holder was not stopped\n")
    console.flush()
    return Exit.OK


def confirmed(arguments: argparse.Namespace, console: Console, question: str) -> bool:
    """Whether the operator means it. Raises UsageError where nobody can be asked."""
    if arguments.yes:
        return True
    if not console.interactive:
        raise UsageError("there is no terminal to ask: say --yes")
    return console.confirm(question)


def _broken(rows: list[Row], fence: int, reason: str | None, stores: Stores) -> bool:
    """Release, and write down who did it and what came of it."""
    try:
        client, by = stores.client(rows[0].alias), f"{operator()}: {reason or 'no reason given'}"
        done = client.break_(rows[0].info.name, fence=fence, by=by)
    except BackendError as error:
        _audit(rows, f"unknown: {type(error).__name__}", reason)
        raise
    _audit(rows, "released" if done else "not released: it had changed", reason)
    return done


def _audit(rows: list[Row], outcome: str, reason: str | None) -> None:
    for alias, info, stuck in rows:
        audit(
            "release",
            outcome,
            reason,
            alias=alias,
            name=info.name,
            fence=info.fence,
            owner=info.owner or "-",
            state=info.state.value,
            stuck=stuck.code if stuck else "-",
        )


def _nothing(name: str, rows: list[Row], where: str) -> str:
    if any(row.info.state is LockState.ORPHAN for row in rows):
        return f"nothing to release: {escape(name)} is an orphan, see locks resolve"
    if any(row.info.state is LockState.DAMAGED for row in rows):
        return f"nothing was released: {escape(name)} is damaged; --damaged deletes what is kept"
    if rows:
        return f"nothing to release: {escape(name)} has no holder with a fencing token"
    hint = "; release takes one exact name, never a pattern" if set(name) & set("*?[") else ""
    return f"nothing to release: {escape(name)} is free in {where}{hint}"
