"""``locks resolve ORDER_KEY --done|--retry``: an operator's word about exactly one orphan.

The store compares the fencing token, and that nobody holds the order's lock, in the step that
writes: an order that was tried again while the operator was reading is left alone.
"""

from __future__ import annotations

import argparse

from lockkit.model.errors import BackendError
from lockkit.model.types import LockState
from lockkit.operate.commands.audit import audit
from lockkit.operate.commands.details import details
from lockkit.operate.commands.exits import Exit, UsageError
from lockkit.operate.commands.release import asked_alone, confirmed
from lockkit.operate.commands.stores import Row, Stores
from lockkit.operate.commands.terminal import Console, escape

__all__ = ["resolve_order"]

QUESTIONS = {
    True: "Did this order take effect? Its duplicates will be told that it did.",
    False: "Did this order not take effect? The next request with its ID will run.",
}


def resolve_order(arguments: argparse.Namespace, stores: Stores, console: Console) -> Exit:
    """Show, ask, compare and write. Never more than one order."""
    aliases = stores.select([arguments.alias] if arguments.alias else None)
    rows = stores.one_name(aliases, arguments.name)
    if not asked_alone(rows, arguments, stores, console, "resolved"):
        return stores.ending()
    found = [row for row in rows if row.info.state is LockState.ORPHAN]
    if not found:
        console.complain(f"nothing to resolve: {escape(arguments.name)} is not an orphan")
        return Exit.ERROR
    if len(found) > 1:
        raise UsageError(
            f"{escape(arguments.name)} is an orphan in several aliases "
            f"({', '.join(escape(row.alias) for row in found)}): say which with --alias"
        )
    return _resolve(found[0], arguments, stores, console)


def _resolve(row: Row, arguments: argparse.Namespace, stores: Stores, console: Console) -> Exit:
    console.write(details(row, console))
    console.flush()
    if arguments.fence not in (None, row.info.fence):
        console.complain(
            f"not resolved: its fencing token is {row.info.fence}, not {arguments.fence}"
        )
        return Exit.ERROR
    if arguments.dry_run:
        console.complain("not resolved: this was a dry run")
        return Exit.OK
    if not confirmed(arguments, console, QUESTIONS[arguments.done]):
        console.complain("not resolved")
        return Exit.ERROR
    if not _written(row, stores, arguments):
        console.complain("not resolved: it is not the orphan that was shown any more")
        return Exit.ERROR
    console.write("resolved: done\n" if arguments.done else "resolved: it may be tried again\n")
    console.flush()
    return Exit.OK


def _written(row: Row, stores: Stores, arguments: argparse.Namespace) -> bool:
    """Resolve, and write down who did it and what came of it."""
    from lockkit.orders.redis_records import resolve

    try:
        resolved = resolve(stores.client(row.alias), row.info, done=arguments.done)
    except BackendError as error:
        _audit(row, f"unknown: {type(error).__name__}", arguments)
        raise
    _audit(row, "resolved" if resolved else "not resolved: it had changed", arguments)
    return resolved


def _audit(row: Row, outcome: str, arguments: argparse.Namespace) -> None:
    audit(
        "resolve",
        outcome,
        arguments.reason,
        alias=row.alias,
        name=row.info.name,
        fence=row.info.fence,
        owner=row.info.owner or "-",
        **{"as": "done" if arguments.done else "retry"},
    )
