"""``locks prune``: the records of orders whose time is over."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from lockkit.commands.exits import Exit, UsageError
from lockkit.commands.stores import Stores
from lockkit.commands.terminal import Console, escape, printable
from lockkit.errors import BackendError

__all__ = ["OrderRecords", "Pruner", "RecordsFactory", "no_records", "prune"]

Pruner = Callable[[int], Iterator[int]]
"""Deletes what has expired, at most so many in a transaction; yields how many, after each."""


class OrderRecords(NamedTuple):
    """The databases that may have records of orders, and those that the settings name."""

    databases: Mapping[str, Pruner]
    usual: tuple[str, ...]


RecordsFactory = Callable[[], OrderRecords]
"""Called for ``prune`` only: wrong settings of orders do not keep anybody from seeing locks."""


def no_records() -> OrderRecords:
    return OrderRecords({}, ())


NOTHING_TO_DO = (
    "no database has records of orders here; in Redis they expire by themselves, "
    "and python -m lockkit knows no database of an application"
)


def prune(
    factory: RecordsFactory,
    arguments: argparse.Namespace,
    stores: Stores,  # noqa: ARG001  as of all commands
    console: Console,
) -> Exit:
    """Delete, and say how many; what was deleted before a database failed is said, too."""
    records = factory()
    for name in arguments.database or ():
        if name not in records.databases:
            known = ", ".join(map(escape, records.databases)) or "none"
            raise UsageError(f"there is no database {name!r}; there are: {known}")
    names = tuple(dict.fromkeys(arguments.database or records.usual))
    if not names:
        console.complain(NOTHING_TO_DO)
    endings = [_prune(name, records.databases[name], arguments.batch, console) for name in names]
    return max(endings, default=Exit.OK)


def _prune(name: str, pruner: Pruner, batch: int, console: Console) -> Exit:
    deleted, ending = 0, Exit.OK
    try:
        for count in pruner(batch):
            deleted += count
    except BackendError as error:
        console.complain(f"database {escape(name)}: {printable(str(error))}")
        ending = Exit.STORE_DOWN
    finally:
        console.write(f"{escape(name)}: {deleted} expired order records deleted\n")
        console.flush()
    return ending
