"""``locks release NAME --damaged``: delete what is kept of a name if it cannot be read.

The store looks again in the step that deletes: what can be read is never deleted by this.
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

__all__ = ["repair"]

QUESTION = "Delete what is kept of this name? If somebody holds it, somebody else can get it, too."


def repair(arguments: argparse.Namespace, stores: Stores, console: Console) -> Exit:
    """Show, ask, look again and delete. Never more than one name."""
    rows = stores.one_name(
        stores.select([arguments.alias] if arguments.alias else None), arguments.name
    )
    if not asked_alone(rows, arguments, stores, console, "deleted"):
        return stores.ending()
    damaged = [row for row in rows if row.info.state is LockState.DAMAGED]
    if not damaged:
        console.complain(f"nothing to delete: {escape(arguments.name)} is not damaged")
        return Exit.ERROR
    if len({row.alias for row in damaged}) > 1:
        aliases = ", ".join(escape(row.alias) for row in damaged)
        raise UsageError(f"it is damaged in several aliases ({aliases}): say which with --alias")
    console.write(details(damaged[0], console))
    console.flush()
    if arguments.dry_run:
        console.complain("not deleted: this was a dry run")
        return Exit.OK
    if not confirmed(arguments, console, QUESTION):
        console.complain("not deleted")
        return Exit.ERROR
    return _repair(damaged[0], arguments.reason, stores, console)


def _repair(row: Row, reason: str | None, stores: Stores, console: Console) -> Exit:
    """Delete, and write down who did it and what came of it."""
    facts = {"alias": row.alias, "name": row.info.name, "state": row.info.state.value}
    try:
        done = stores.client(row.alias).repair(row.info.name)
    except BackendError as error:
        audit("release --damaged", f"unknown: {type(error).__name__}", reason, **facts)
        raise
    audit("release --damaged", "deleted" if done else "not deleted", reason, **facts)
    if not done:
        console.complain("not deleted: it can be read now")
        return Exit.ERROR
    console.write("deleted\n")
    console.flush()
    return Exit.OK
