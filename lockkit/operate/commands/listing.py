"""``locks list`` and ``locks show``."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase

from lockkit.model.types import LockInfo
from lockkit.operate.commands.details import details
from lockkit.operate.commands.exits import Exit, UsageError
from lockkit.operate.commands.formats import Format, format_named
from lockkit.operate.commands.stores import Limits, Row, Stores, is_now, limited, ordered, paged
from lockkit.operate.commands.terminal import Console, escape, printable

__all__ = ["list_locks", "show"]


def list_locks(arguments: argparse.Namespace, stores: Stores, console: Console) -> Exit:
    """Show what matches, once or until interrupted.

    With ``--watch`` and ``--fail-on-stuck`` it ends when something is stuck.
    """
    if arguments.reverse and not arguments.sort:
        raise UsageError("--reverse needs --sort")
    look = _Listing(arguments, stores, console)
    while True:
        ending = look.once()
        if arguments.watch is None or ending is Exit.STUCK or not console.has_reader:
            return ending
        time.sleep(arguments.watch)
        look.again()


def show(arguments: argparse.Namespace, stores: Stores, console: Console) -> Exit:
    """All that is known of one name, in each alias. A free name is an answer, not an error."""
    aliases = stores.select(arguments.alias)
    rows = stores.of_name(aliases, arguments.name)
    if arguments.format != "table":
        return _written(paged(rows), format_named(arguments.format, console), stores, console)
    if not any(map(is_now, rows)) and stores.ending() is Exit.OK:
        where = printable(stores.where(aliases))
        console.write(f"{escape(arguments.name)} is free in {where}\n" + ("\n" if rows else ""))
    for row in rows:
        console.write(details(row, console))
    console.flush()
    return stores.ending()


class _Listing:
    """The listing, and what it must know from one look to the next."""

    def __init__(self, arguments: argparse.Namespace, stores: Stores, console: Console) -> None:
        self._arguments = arguments
        self._stores = stores
        self._console = console
        self._aliases = stores.select(arguments.alias)
        self._wanted = _filter(arguments)
        one_alias = len(self._aliases) == 1
        self._format = format_named(arguments.format, console, one_alias=one_alias)
        self._matched = False
        self._stuck = False

    def again(self) -> None:
        self._matched = self._stuck = False
        self._stores.forgive()
        if self._arguments.format in ("table", "wide"):
            self._console.clear()
            if not self._console.is_terminal:
                self._console.write("\n")

    def once(self) -> Exit:
        arguments = self._arguments
        pages = self._pages()
        shown = ordered(
            pages, arguments.sort, reverse=arguments.reverse, limit=arguments.limit
        ) if arguments.sort else limited(pages, arguments.limit)  # fmt: skip
        try:
            _written(shown, self._format, self._stores, self._console)
        except BrokenPipeError:
            if not arguments.fail_on_stuck:
                raise
            self._console.forget_reader()
        if arguments.fail_on_stuck:
            self._look_on(pages)
            if self._stuck:
                return Exit.STUCK
        ending = self._stores.ending()
        if not self._matched and ending is Exit.OK and arguments.format in ("table", "wide"):
            nothing = "nothing matches" if self._is_filtered() else "nothing is held"
            self._console.complain(f"{nothing} in {printable(self._stores.where(self._aliases))}")
        return ending

    def _pages(self) -> Iterator[list[Row]]:
        """What matches, noting whether any of it is stuck."""
        for page in self._stores.pages(self._aliases, limits=_limits(self._arguments)):
            rows = [row for row in page if self._wanted(row)]
            if rows:
                self._matched = True
                self._stuck = self._stuck or any(row.stuck for row in rows)
                yield rows

    def _look_on(self, pages: Iterator[list[Row]]) -> None:
        """``--limit`` ends what is shown, not what ``--fail-on-stuck`` looks at."""
        while not self._stuck and next(pages, None) is not None:
            pass

    def _is_filtered(self) -> bool:
        arguments = self._arguments
        return bool(
            arguments.stuck or arguments.match or arguments.owner
        ) or _limits(arguments)[:2] != (None, None)  # fmt: skip


def _written(pages: Iterator[list[Row]], form: Format, stores: Stores, console: Console) -> Exit:
    """Write each page as soon as it is there."""
    form.start()
    for page in pages:
        form.page(page)
        console.flush()
    form.finish({**stores.wrong, **stores.down}, stores.about)
    console.flush()
    return stores.ending()


def _filter(arguments: argparse.Namespace) -> Callable[[Row], bool]:
    tests: list[Callable[[Row], bool]] = []
    if arguments.stuck:
        tests.append(lambda row: row.stuck is not None)
    else:
        tests += _beyond(arguments)
    if arguments.match is not None:
        tests.append(lambda row: fnmatchcase(row.info.name, arguments.match))
    if arguments.owner is not None:
        tests.append(lambda row: _owned(row.info, arguments.owner))
    return lambda row: all(test(row) for test in tests)


def _beyond(arguments: argparse.Namespace) -> Iterator[Callable[[Row], bool]]:
    if arguments.older_than is not None:
        yield lambda row: (row.info.age or 0.0) > arguments.older_than
    if arguments.waiting_longer_than is not None:
        yield lambda row: (row.info.waiting or 0.0) > arguments.waiting_longer_than


def _limits(arguments: argparse.Namespace) -> Limits:
    return Limits(arguments.older_than, arguments.waiting_longer_than, arguments.lost)


def _owned(info: LockInfo, glob: str) -> bool:
    owner = info.owner
    if owner is None:
        return False
    ways = (owner.host, f"{owner.host}:{owner.pid}", owner.label, str(owner))
    return any(fnmatchcase(way, glob) for way in ways)
