"""``locks prune``: the records of orders whose time is over."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from lockkit.model.errors import BackendError, ConfigurationError, StoreRefused
from lockkit.operate.commands.exits import Exit, UsageError
from lockkit.operate.commands.stores import Stores
from lockkit.operate.commands.terminal import Console, escape, printable

__all__ = ["OrderRecords", "Pruner", "RecordsFactory", "no_records", "prune"]

Pruner = Callable[[int], Iterator[int]]
"""Deletes what has expired, at most so many in a transaction; yields how many, after each."""


IN_REDIS = "the records of orders are in Redis, where they expire by themselves"


class OrderRecords(NamedTuple):
    """The databases that may have records of orders, and those that the settings name."""

    databases: Mapping[str, Pruner]
    usual: tuple[str, ...]
    why_none: str = IN_REDIS  #: what to say where the settings name none


RecordsFactory = Callable[[], OrderRecords]
"""Called for ``prune`` only: wrong settings of orders do not keep anybody from seeing locks."""


def no_records() -> OrderRecords:
    raise ConfigurationError(
        "the records of orders are in the databases of an application, and none is known here: "
        "'manage.py locks prune', in Flask 'flask locks prune'"
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
        console.complain(records.why_none)
    endings = [_prune(name, records.databases[name], arguments.batch, console) for name in names]
    return max(endings, default=Exit.OK)


def _prune(name: str, pruner: Pruner, batch: int, console: Console) -> Exit:
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
