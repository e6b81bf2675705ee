"""``locks prune`` and ``locks check``: what only an application knows."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from lockkit.model.errors import BackendError, ConfigurationError, StoreRefused
from lockkit.operate.console import Console, Exit, UsageError
from lockkit.operate.text import escape, printable

if TYPE_CHECKING:
    from lockkit.web.route_checks import Finding

Pruner = Callable[[int], Iterator[int]]
"""Deletes what has expired, at most so many in a transaction; yields how many, after each."""


class OrderRecords(NamedTuple):
    """The databases that may have records of orders, and those that the settings name."""

    databases: Mapping[str, Pruner]
    usual: tuple[str, ...]
    why_none: str = "the records of orders are in Redis, where they expire by themselves"


def no_records() -> OrderRecords:
    raise ConfigurationError(
        "the records of orders are in the databases of an application, and none is known here: "
        "'manage.py locks prune', in Flask 'flask locks prune'"
    )


def no_findings() -> Iterable[Finding]:
    raise ConfigurationError(
        "only an application has routes to check: 'flask locks check', in Django 'manage.py check'"
    )


def prune(records: OrderRecords, arguments: argparse.Namespace, console: Console) -> Exit:
    """Delete the records of orders whose time is over, and say how many."""
    for name in arguments.database or ():
        if name not in records.databases:
            known = ", ".join(map(escape, records.databases)) or "none"
            raise UsageError(f"there is no database {name!r}; there are: {known}")
    names = tuple(dict.fromkeys(arguments.database or records.usual))
    if not names:
        console.complain(records.why_none)
    endings = [_prune(name, records.databases[name], arguments.batch, console) for name in names]
    return max(endings, default=Exit.OK)


def _prune(name: str, pruner: Pruner, batch: int, console: Console) -> Exit:
    """What was deleted before a database failed is said, too."""
    deleted, ending = 0, Exit.OK
    try:
        for count in pruner(batch):
            deleted += count
    except BackendError as error:
        console.complain(f"database {escape(name)}: {printable(str(error))}")
        ending = Exit.ERROR if isinstance(error, StoreRefused) else Exit.STORE_DOWN
    finally:
        console.write(f"{escape(name)}: {deleted} expired order records deleted\n")
        console.flush()
    return ending


def check(findings: Iterable[Finding], console: Console) -> Exit:
    """Show what is wrong with the routes, each with its remedy; ``Exit.ERROR`` if anything is."""
    found = list(findings)
    for finding in found:
        console.write(f"{printable(finding.text)}.\n    {printable(finding.remedy)}\n")
    if not found:
        console.write("nothing found\n")
    return Exit.ERROR if found else Exit.OK
