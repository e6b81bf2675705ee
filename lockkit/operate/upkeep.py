"""``locks prune`` and ``locks check``, which need an application, and ``locks ddl``."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from lockkit.model.errors import BackendError, ConfigurationError, StoreRefused
from lockkit.operate.caution import DRY_RUN, audit, refusal
from lockkit.operate.console import Console, Exit, UsageError
from lockkit.operate.text import escape, printable

if TYPE_CHECKING:
    from lockkit.model.types import Finding
    from lockkit.operate.stores import Stores
    from lockkit.orders.table import Table

GRANTS = "SELECT, INSERT, UPDATE and DELETE on it"


class OrderRecords(NamedTuple):
    """The databases that may have records of orders, and those that the settings name."""

    databases: Mapping[str, Table]
    usual: Iterable[str]  #: read only if no database is named


def no_records() -> OrderRecords:
    raise ConfigurationError(
        "the records of orders are in the databases of an application, and there is none here: "
        "use 'manage.py locks prune' or 'flask locks prune'"
    )


def no_findings() -> Iterable[Finding]:
    raise ConfigurationError(
        "'locks check' is for Flask: use 'flask locks check', or 'manage.py check' in Django"
    )


def ddl(arguments: argparse.Namespace, stores: Stores, console: Console) -> Exit:
    """Print the SQL that makes the tables of the aliases. Explanations are SQL comments."""
    for alias in stores.select(arguments.alias):
        client = stores.client(alias)
        sql = client.store.ddl()
        what = "needs no table, or makes it itself" if not sql else "its users need " + GRANTS
        where = printable(client.settings.shown_location)
        console.write(f"-- alias {escape(alias)} ({where}): {what}\n{sql + ';' if sql else ''}\n")
    return Exit.OK


def prune(records: OrderRecords, arguments: argparse.Namespace, console: Console) -> Exit:
    """Delete the expired records of orders, and say how many."""
    for name in arguments.database or ():
        if name not in records.databases:
            known = ", ".join(map(escape, records.databases)) or "none"
            raise UsageError(f"there is no database {name!r}; there are: {known}")
    names = tuple(dict.fromkeys(arguments.database or records.usual))
    if not names:
        console.complain("the records of orders are in Redis, where they expire by themselves")
    tables = {name: records.databases[name] for name in names}
    if arguments.unreadable is not None:
        found = [_repair(name, table, arguments, console) for name, table in tables.items()]
        if not any(ending is not None for ending in found):
            console.complain(f"{escape(arguments.unreadable)} has no record that cannot be read")
        return max((ending for ending in found if ending is not None), default=Exit.ERROR)
    if arguments.yes or arguments.dry_run or arguments.reason is not None:
        raise UsageError("--yes, --dry-run and --reason are for --unreadable")
    endings = [_prune(name, table, arguments.batch, console) for name, table in tables.items()]
    return Exit.STUCK if Exit.STUCK in endings else max(endings, default=Exit.OK)


def _repair(
    name: str, table: Table, arguments: argparse.Namespace, console: Console
) -> Exit | None:
    """Delete the record of one order in one database. None: it has none that cannot be read."""
    order, key = arguments.unreadable, arguments.unreadable.removeprefix("order:")
    try:
        if not table.is_unreadable(key):
            return None
        console.report(f"{escape(name)}: the record of {escape(order)} cannot be read\n")
        why_not = refusal("Delete it? Its order may have taken effect.", arguments, console)
        if why_not is None and not _repaired(name, table, order, arguments.reason):
            why_not = ": it can be read now, or is gone"
    except (BackendError, ConfigurationError) as error:
        return _failed(name, error, console)
    if why_not is not None:
        console.complain(f"not deleted{why_not}")
        return Exit.OK if why_not == DRY_RUN else Exit.ERROR
    console.report("deleted\n")
    return Exit.OK


def _repaired(name: str, table: Table, order: str, reason: str | None) -> bool:
    """Delete it, and log who did and the outcome."""
    facts = {"database": name, "name": order, "reason": reason or "-"}
    try:
        done = table.repair(order.removeprefix("order:"))
    except BaseException as error:  # also an interrupt: it may have been deleted
        audit("prune --unreadable", f"unknown: {type(error).__name__}", facts)
        raise
    audit("prune --unreadable", "deleted" if done else "not deleted: it had changed", facts)
    return done


def _failed(name: str, error: Exception, console: Console) -> Exit:
    console.complain(f"database {escape(name)}: {printable(str(error))}")
    down = isinstance(error, BackendError) and not isinstance(error, StoreRefused)
    return Exit.STORE_DOWN if down else Exit.ERROR


def _prune(name: str, table: Table, batch: int, console: Console) -> Exit:
    """Prune one database, and say how many records were deleted, even if it fails. A failure
    decides the exit status; without one, a record that cannot be read decides it."""
    deleted, ending = 0, Exit.OK
    try:
        for count in table.prune(batch):
            deleted += count
        for key in table.unreadable():
            ending = Exit.STUCK
            console.complain(
                f"database {escape(name)}: the record of order:{escape(key)} cannot be read, so "
                "its duplicates get 503. Once you know that it has not taken effect, run "
                f"{console.program} prune --database {escape(name)} "
                f"--unreadable order:{escape(key)}"
            )
    except (BackendError, ConfigurationError) as error:  # ConfigurationError: no table
        ending = _failed(name, error, console)
    finally:
        if deleted or ending in (Exit.OK, Exit.STUCK):
            console.report(f"{escape(name)}: {deleted} expired order records deleted\n")
    return ending


def check(findings: Iterable[Finding], console: Console) -> Exit:
    """Show each fault with its remedy, as it is found: a store that is down ends the search.
    ``Exit.ERROR`` if there is any."""
    ending = Exit.OK
    for finding in findings:
        ending = Exit.ERROR
        console.report(f"{printable(finding.text)}.\n    {printable(finding.remedy)}\n")
    if ending is Exit.OK:
        console.report("nothing found\n")
    return ending
