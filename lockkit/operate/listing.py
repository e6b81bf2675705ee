"""``locks list`` and ``locks show``."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain, islice

from lockkit.model.types import Owner
from lockkit.operate.columns import details
from lockkit.operate.console import Console, Exit
from lockkit.operate.formats import TABLES, Format, format_named
from lockkit.operate.inspect import stuck
from lockkit.operate.stores import Row, Stores
from lockkit.operate.text import escape, printable


def list_locks(arguments: argparse.Namespace, stores: Stores, console: Console) -> Exit:
    """Show the matching rows, once or until interrupted.

    With ``--watch`` and ``--fail-on-stuck`` it ends when something is stuck.
    """
    aliases = stores.select(arguments.alias)
    form = format_named(arguments.format, console, one_alias=len(aliases) == 1)
    while True:
        ending = _Look(arguments, stores, aliases).show(form, console)
        if arguments.watch is None or ending is Exit.STUCK or not console.has_reader:
            return ending
        time.sleep(arguments.watch)
        stores.forgive()
        if arguments.format in TABLES:
            console.clear()


def show(arguments: argparse.Namespace, stores: Stores, console: Console) -> Exit:
    """Everything about one name, in each alias. A free name is not an error."""
    aliases = stores.select(arguments.alias)
    rows = stores.of_name(aliases, arguments.name)
    ending = stores.ending(of_named=bool(arguments.alias))
    free = ""
    if not any(row.is_now for row in rows) and ending is Exit.OK:
        free = f"{escape(arguments.name)} is free in {printable(stores.where(aliases))}"
    if arguments.format != "table":
        pages = [rows] if rows else []
        _write(pages, format_named(arguments.format, console), stores, console)
        if free and arguments.format != "json":  # JSON shows it
            console.complain(free)
        return ending
    if free:
        console.write(free + ("\n\n" if rows else "\n"))
    for row in rows:
        console.write(details(row, console))
    console.flush()
    return ending


class _Look:
    """One look at all matching rows. It notes who has some, and whether one is stuck."""

    def __init__(self, arguments: argparse.Namespace, stores: Stores, aliases: list[str]) -> None:
        self._arguments = arguments
        self._stores = stores
        self._aliases = aliases
        self._pages = self._matching()
        self._stuck = False
        self._found: set[str] = set()  #: aliases with matching rows

    def show(self, form: Format, console: Console) -> Exit:
        arguments = self._arguments
        try:
            _write(_limited(self._pages, arguments.limit), form, self._stores, console)
        except BrokenPipeError:
            if not arguments.fail_on_stuck:
                raise
            console.forget_reader()
        if arguments.fail_on_stuck and self._any_stuck():
            return Exit.STUCK
        ending = self._stores.ending(of_named=bool(arguments.alias))
        if ending is Exit.OK and arguments.format != "json":  # JSON shows it
            self._tell_empty(console)
        return ending

    def _tell_empty(self, console: Console) -> None:
        """Name the aliases in which nothing is held: one may have a misspelt prefix."""
        is_filtered = _is_filtered(self._arguments)
        nothing = "nothing matches" if is_filtered else "nothing is held"
        is_partial = is_filtered or self._arguments.limit or self._arguments.watch
        found = self._aliases if self._found and is_partial else self._found
        empty = [alias for alias in self._aliases if alias not in found]
        if where := self._stores.where(empty, named=len(self._aliases) > 1):
            console.complain(f"{nothing} in {printable(where)}")

    def _matching(self) -> Iterator[list[Row]]:
        arguments = self._arguments
        judge = partial(
            stuck,
            older_than=arguments.older_than,
            waiting_longer_than=arguments.waiting_longer_than,
        )
        for page in self._stores.pages(self._aliases, judge=judge, lost=arguments.lost):
            rows = [row for row in page if _matches(row, arguments)]
            if rows:
                self._found.update(row.alias for row in rows)
                self._stuck = self._stuck or any(row.stuck for row in rows)
                yield rows

    def _any_stuck(self) -> bool:
        """``--limit`` limits what is shown, not what ``--fail-on-stuck`` looks at."""
        while not self._stuck and next(self._pages, None) is not None:
            pass
        return self._stuck


def _write(pages: Iterable[list[Row]], form: Format, stores: Stores, console: Console) -> None:
    """Write each page as soon as it has been read; nothing, if it turns out at the first that the
    command is used wrongly."""
    left = iter(pages)
    first = list(islice(left, 1))
    form.start()
    for page in chain(first, left):
        form.page(page)
        console.flush()
    form.finish(stores)
    console.flush()


def _limited(pages: Iterable[list[Row]], limit: int | None) -> Iterator[list[Row]]:
    """At most ``limit`` rows; the stores are not asked for more."""
    if limit is None:
        yield from pages
        return
    for page in pages:
        yield page[:limit]
        limit -= len(page)
        if limit <= 0:
            return


def _matches(row: Row, arguments: argparse.Namespace) -> bool:
    info = row.info
    if arguments.stuck:
        is_meant = row.stuck is not None
    else:
        is_meant = _over(info.age, arguments.older_than)
        is_meant = is_meant and _over(info.waiting, arguments.waiting_longer_than)
    if arguments.match is not None:
        is_meant = is_meant and fnmatchcase(info.name, arguments.match)
    return is_meant and (arguments.owner is None or _owned(info.owner, arguments.owner))


def _over(seconds: float | None, limit: float | None) -> bool:
    return limit is None or (seconds or 0.0) > limit


def _owned(owner: Owner | None, glob: str) -> bool:
    if owner is None:
        return False
    ways = (owner.host, f"{owner.host}:{owner.pid}", owner.label, str(owner))
    return any(fnmatchcase(way, glob) for way in ways)


def _is_filtered(arguments: argparse.Namespace) -> bool:
    filters = ("stuck", "match", "owner", "older_than", "waiting_longer_than")
    return any(getattr(arguments, each) for each in filters)
