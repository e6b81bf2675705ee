"""The contents of the stores as pages of rows, streamed: memory does not grow with the store."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from lockkit.leases.client import LockClient
from lockkit.model.errors import (
    BackendError,
    ConfigurationError,
    LockError,
    StoreRefused,
    UnsupportedCapability,
)
from lockkit.model.names import repair_command
from lockkit.model.types import LockInfo, LockState
from lockkit.operate.console import Console, Exit, UsageError
from lockkit.operate.inspect import Growth, Stuck, remark, stuck
from lockkit.operate.side_by_side import side_by_side
from lockkit.operate.text import ELLIPSIS, escape, printable

ClientFactory = Callable[[], LockClient]
Judge = Callable[[LockInfo], Stuck | None]

PAGE = 64
"""Rows of a page. A store is asked for no more rows before the page is shown."""

PREFIXES_SHOWN = 10


class Row(NamedTuple):
    """One name in one alias."""

    alias: str
    info: LockInfo
    stuck: Stuck | None

    @property
    def reason(self) -> str | None:
        """Why the name is stuck, or how its lease ended."""
        return self.stuck.reason if self.stuck else remark(self.info)

    @property
    def is_now(self) -> bool:
        """Whether it is the present state, and not the last words of an earlier lease."""
        return self.info.state is not LockState.LOST


class Stores:
    """The configured aliases, and which of them failed.

    If a store is down, the others are still shown. Its failure is reported when
    it happens, and decides the exit status.
    """

    def __init__(self, clients: Mapping[str, ClientFactory], console: Console) -> None:
        self._clients = clients
        self._console = console
        self.down: dict[str, str] = {}  #: alias: what its store said
        self.wrong: dict[str, str] = {}  #: alias: what is wrong with its settings
        self._looked_at: list[str] = []
        self._answered: set[str] = set()
        self._unlisted: set[str] = set()  #: the wrong ones whose store can list nothing
        self._growth = Growth()

    def select(self, aliases: Sequence[str] | None) -> list[str]:
        """The aliases asked for, or all. Raises UsageError."""
        for alias in aliases or ():
            if alias not in self._clients:
                known = ", ".join(map(escape, self._clients))
                raise UsageError(f"there is no lock alias {alias!r}; there are: {known}")
        return list(dict.fromkeys(aliases or self._clients))

    def client(self, alias: str) -> LockClient:
        """Raises ConfigurationError."""
        return self._clients[alias]()

    def where(self, aliases: Iterable[str], *, named: bool = False) -> str:
        """The stores that can be listed, and the other key prefixes in them, without passwords.
        ``named``: with its alias, also if it is only one."""
        clients = {a: self.client(a) for a in aliases if a not in self._unlisted}
        shown = {alias: _place(client) + _beside(client) for alias, client in clients.items()}
        if len(shown) == 1 and not named:
            return next(iter(shown.values()))
        return ", ".join(f"{escape(alias)} ({where})" for alias, where in shown.items())

    def about(self, *, nothing: bool) -> dict[str, dict[str, Any]]:
        """The stores that have answered, for JSON; ``--limit`` may end the look before others do.
        Other prefixes are read only if nothing was found."""
        answered = self._answered - {*self.down, *self.wrong}
        clients = {alias: self.client(alias) for alias in self._looked_at if alias in answered}
        return {
            alias: {
                "location": client.settings.shown_location,
                "database": client.store.database(),
                "key_prefix": client.settings.key_prefix,
                "other_prefixes": _other_prefixes(client) if nothing else None,
                "this_process_only": client.store.is_within_process(),
            }
            for alias, client in clients.items()
        }

    def forgive(self) -> None:
        """Forget the failures of an earlier look."""
        self.down.clear()
        self.wrong.clear()
        self._answered.clear()
        self._unlisted.clear()
        self._growth.next_look()

    def pages(
        self,
        aliases: Iterable[str],
        name: str | None = None,
        *,
        judge: Judge = stuck,
        lost: bool = False,
    ) -> Iterator[list[Row]]:
        """All rows, or those of one name. Each page has rows of one alias only. ``lost``: include
        the last words of all names; those of one name are always included."""
        self._looked_at = list(aliases)
        readers = [self._pages(alias, name, judge, lost=lost) for alias in aliases]
        return readers[0] if len(readers) == 1 else side_by_side(readers)

    def of_name(self, aliases: Sequence[str], name: str) -> list[Row]:
        """The rows of the name; for a clipped name, those of all names that begin like it."""
        rows = list(itertools.chain.from_iterable(self.pages(aliases, name)))
        if rows or not name.endswith(ELLIPSIS):
            return rows
        start = name.removesuffix(ELLIPSIS)
        every = itertools.chain.from_iterable(self.pages(aliases))
        return [row for row in every if row.info.name.startswith(start)]

    def ending(self, *, of_named: bool) -> Exit:
        """``of_named``: a store that can list nothing is an error, also beside one that can."""
        if self.down:
            return Exit.STORE_DOWN
        every = of_named or self._unlisted.issuperset(self._looked_at)
        wrong = self.wrong if every else self.wrong.keys() - self._unlisted
        return Exit.ERROR if wrong else Exit.OK

    def _pages(
        self, alias: str, name: str | None, judge: Judge, *, lost: bool
    ) -> Iterator[list[Row]]:
        """Rows that were read before the store failed are shown as well."""
        page: list[Row] = []
        failed: Exception | None = None
        try:
            for info in _all(self.client(alias), name, lost=lost or name is not None):
                info = _as_typed(info, self._console.program)  # noqa: PLW2901
                page.append(Row(alias, info, judge(info) or self._growth.judge(alias, info)))
                self._answered.add(alias)
                if len(page) == PAGE:
                    yield page
                    page = []
        except (BackendError, ConfigurationError) as error:
            failed = error
        if page:
            yield page
        if failed:
            self._note(alias, failed)
        self._answered.add(alias)

    def _note(self, alias: str, error: Exception) -> None:
        kind, text = self.wrong, str(error)
        if isinstance(error, BackendError):
            refuses = isinstance(error, StoreRefused)
            kind = self.wrong if refuses else self.down
            said = "refused the request" if refuses else "is down"
            text = f"its store {said}: {error} ({_place(self.client(alias))})"
        elif isinstance(error, UnsupportedCapability):
            self._unlisted.add(alias)
        kind[alias] = text
        self._console.complain(f"alias {escape(alias)}: {printable(text)}")


def _as_typed(info: LockInfo, program: str) -> LockInfo:
    """With the command that repairs it as the operator has to type it."""
    known, typed = repair_command(info.name), repair_command(info.name, program)
    return info._replace(damage=info.damage.replace(known, typed)) if info.damage else info


def _all(client: LockClient, name: str | None, *, lost: bool) -> Iterator[LockInfo]:
    """The locks, the last words of leases that were not released, and then the orphaned orders. The
    error of a store that fails after its first page, as one server of a cluster, comes last."""
    failed: list[LockError] = []
    has_begun = False
    try:
        for page in client._pages(name):
            has_begun = True
            yield from page
    except LockError as error:
        if not has_begun:
            raise
        failed.append(error)
    for more in [client.last_words] * lost + [partial(_orphans, client)]:
        try:
            yield from more(name)
        except LockError as error:
            failed.append(error)
    if failed:
        raise failed[0]


def _orphans(client: LockClient, name: str | None) -> Iterator[LockInfo]:
    if client.store.records() is not None:  # else there is no need to import this
        from lockkit.orders.redis_records import orphans

        yield from orphans(client, name)


def _place(client: LockClient) -> str:
    """``redis://127.0.0.1:6379/0 (database 0), key prefix 'shop'``; without passwords.

    A misspelt prefix or database has no locks, which must not look like an all-clear.
    """
    where, database = client.settings.shown_location, client.store.database()
    path, _, state = database.rpartition(", ")  # LOCATION may have the path, but not its state
    if path and path in where:
        database = state
    if database not in where:
        where = f"{where} ({database})"
    return f"{where}, key prefix {client.settings.key_prefix!r}"


def _beside(client: LockClient) -> str:
    """The end of a sentence, with the key prefixes that were not looked at; may be empty."""
    found = _other_prefixes(client)
    text = "; other key prefixes are not known" if found is None else ""
    if found:
        names = [f"{n!r}{' (has locks)' * bool(has)}" for n, has in found.items()][:PREFIXES_SHOWN]
        more = f" and {len(found) - PREFIXES_SHOWN} more" if len(found) > PREFIXES_SHOWN else ""
        text = f"; other key prefixes there: {', '.join(names)}{more}"
    if client.store.is_within_process():
        text += "; it is within one process: the locks of other processes are not shown"
    return text


def _other_prefixes(client: LockClient) -> dict[str, bool | None] | None:
    """The prefixes with locks first; None if they are not known."""
    try:
        found = client.perform(client.store.prefixes())
    except LockError:
        return None
    if found is None:
        return None
    return dict(sorted(found.items(), key=lambda pair: (not pair[1], pair[0])))
