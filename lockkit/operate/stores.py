"""What the stores hold, as pages of rows: streamed, so that memory does not grow with the store."""

from __future__ import annotations

import contextvars
import itertools
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from lockkit.leases.client import LockClient
from lockkit.model.errors import BackendError, ConfigurationError, LockError, StoreRefused
from lockkit.model.types import LockInfo, LockState
from lockkit.operate.console import Console, Exit, UsageError
from lockkit.operate.inspect import Growth, Stuck, remark, stuck
from lockkit.operate.text import ELLIPSIS, escape, printable

ClientFactory = Callable[[], LockClient]

PAGE = 64
"""Rows. A store is asked for no more than the page needs before the page is shown."""

AHEAD = 2
"""Pages that a store may be ahead of what is shown."""

TURN = 0.2
"""Seconds for which a store may keep the next one waiting, so that their order is steady."""

PREFIXES_SHOWN = 10


class Row(NamedTuple):
    """One name in one alias."""

    alias: str
    info: LockInfo
    stuck: Stuck | None

    @property
    def reason(self) -> str | None:
        """Why it is stuck, or how its lease ended, in words."""
        return self.stuck.reason if self.stuck else remark(self.info)

    @property
    def is_now(self) -> bool:
        """Of what is, and not the last words of what was."""
        return self.info.state is not LockState.LOST


class Limits(NamedTuple):
    """What counts as stuck, and whether last words are looked at."""

    older_than: float | None = None
    waiting_longer_than: float | None = None
    lost: bool = False


NO_LIMITS = Limits()


class Stores:
    """The configured aliases, and which of them failed.

    A store that is down does not keep the others from being shown: its failure is reported when
    it happens, and decides how the command ends.
    """

    def __init__(self, clients: Mapping[str, ClientFactory], console: Console) -> None:
        self._clients = clients
        self._console = console
        self.down: dict[str, str] = {}  #: alias: what its store said
        self.wrong: dict[str, str] = {}  #: alias: what is wrong with its settings
        self._looked_at: list[str] = []
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

    def where(self, aliases: Iterable[str]) -> str:
        """Which stores these are, and what else is there, without passwords."""
        shown = {a: _place(self.client(a)) + _beside(self.client(a)) for a in aliases}
        if len(shown) == 1:
            return next(iter(shown.values()))
        return ", ".join(f"{escape(alias)} ({where})" for alias, where in shown.items())

    def about(self, *, nothing: bool) -> dict[str, dict[str, Any]]:
        """The stores that have answered, for JSON. What else is there is asked only where
        nothing was found."""
        answered = [a for a in self._looked_at if a not in self.down and a not in self.wrong]
        clients = {alias: self.client(alias) for alias in answered}
        return {
            alias: {
                "location": client.settings.shown_location,
                "database": client.backend.database(),
                "key_prefix": client.settings.key_prefix,
                "other_prefixes": _other_prefixes(client) if nothing else None,
            }
            for alias, client in clients.items()
        }

    def forgive(self) -> None:
        """Forget the failures of an earlier look."""
        self.down.clear()
        self.wrong.clear()
        self._growth.next_look()

    def pages(
        self, aliases: Iterable[str], name: str | None = None, limits: Limits = NO_LIMITS
    ) -> Iterator[list[Row]]:
        """All, or what is known of one name; each page holds rows of one alias only."""
        self._looked_at = list(aliases)
        readers = [self._pages(alias, name, limits) for alias in aliases]
        return readers[0] if len(readers) == 1 else _side_by_side(readers)

    def of_name(self, aliases: Sequence[str], name: str) -> list[Row]:
        """What is known of the name; of one that a table has clipped, of all that begin so."""
        rows = list(itertools.chain.from_iterable(self.pages(aliases, name)))
        if rows or not name.endswith(ELLIPSIS):
            return rows
        start = name.removesuffix(ELLIPSIS)
        every = itertools.chain.from_iterable(self.pages(aliases))
        return [row for row in every if row.info.name.startswith(start)]

    def ending(self) -> Exit:
        if self.down:
            return Exit.STORE_DOWN
        return Exit.ERROR if self.wrong else Exit.OK

    def _pages(self, alias: str, name: str | None, limits: Limits) -> Iterator[list[Row]]:
        """What was read before a store failed is shown, too."""
        page: list[Row] = []
        failed: tuple[dict[str, str], str] | None = None
        try:
            for info in _all(self.client(alias), name, lost=limits.lost or name is not None):
                found = stuck(info, limits.older_than, limits.waiting_longer_than)
                page.append(Row(alias, info, found or self._growth.judge(alias, info)))
                if len(page) == PAGE:
                    yield page
                    page = []
        except StoreRefused as error:
            failed = self.wrong, f"its store refuses: {error} ({_place(self.client(alias))})"
        except BackendError as error:
            failed = self.down, f"its store is down: {error} ({_place(self.client(alias))})"
        except ConfigurationError as error:
            failed = self.wrong, str(error)
        if page:
            yield page
        if failed:
            failed[0][alias] = failed[1]
            self._console.complain(f"alias {escape(alias)}: {printable(failed[1])}")


def _all(client: LockClient, name: str | None, *, lost: bool) -> Iterator[LockInfo]:
    """What the locks are, how leases ended that were not released, and then the orders that were
    begun and are nobody's any more."""
    yield from client.holders(name)
    if lost:
        yield from client.last_words(name)
    if client.backend.records() is not None:  # only then is there more to import
        from lockkit.orders.redis_records import orphans

        yield from orphans(client, name)


def _place(client: LockClient) -> str:
    """``redis://127.0.0.1:6379/0 (database 0), key prefix 'shop'``; without passwords.

    A prefix or a database that is misspelt holds nothing: that must not read as an all-clear.
    """
    where, database = client.settings.shown_location, client.backend.database()
    path, _, state = database.rpartition(", ")  # LOCATION may have the path, but not its state
    if path and path in where:
        database = state
    if database not in where:
        where = f"{where} ({database})"
    return f"{where}, key prefix {client.settings.key_prefix!r}"


def _beside(client: LockClient) -> str:
    """What was not looked at there, as the end of a sentence; or nothing."""
    text = ""
    if found := _other_prefixes(client):
        names = [f"{n!r}{' (has locks)' * has}" for n, has in found.items()][:PREFIXES_SHOWN]
        more = f" and {len(found) - PREFIXES_SHOWN} more" if len(found) > PREFIXES_SHOWN else ""
        text = f"; other key prefixes there: {', '.join(names)}{more}"
    if client.backend.capabilities.process_local:
        text += "; memory:// is within one process: locks of other processes cannot be seen"
    return text


def _other_prefixes(client: LockClient) -> dict[str, bool]:
    """Those with locks first; none where the store does not tell."""
    try:
        found = client.backend.prefixes()
    except LockError:
        return {}
    return dict(sorted(found.items(), key=lambda pair: (not pair[1], pair[0])))


def _side_by_side(readers: Iterable[Iterator[list[Row]]]) -> Iterator[list[Row]]:
    """What they read: in their order, but for those that are slow. Raises what one of them does,
    in its turn."""
    stopped = threading.Event()
    waiting = deque(_Reader(pages, stopped) for pages in readers)
    try:
        while waiting:
            try:
                page = waiting[0].read.get(timeout=TURN)
            except queue.Empty:
                waiting.rotate(-1)
                continue
            if isinstance(page, BaseException):
                raise page
            if page is None:
                waiting.popleft()
            else:
                yield page
    finally:
        stopped.set()


class _Reader:
    """Reads in a thread, which ends soon after it is stopped, or with its process."""

    def __init__(self, pages: Iterator[list[Row]], stopped: threading.Event) -> None:
        self.read: queue.Queue[list[Row] | BaseException | None] = queue.Queue(AHEAD)
        self._pages = pages
        self._stopped = stopped
        run = contextvars.copy_context().run
        threading.Thread(target=run, args=(self._run,), name="lockkit-look", daemon=True).start()

    def _run(self) -> None:
        try:
            for page in self._pages:
                if not self._put(page):
                    return
        except BaseException as error:  # noqa: BLE001  raised where the pages are asked for
            self._put(error)
        else:
            self._put(None)

    def _put(self, item: list[Row] | BaseException | None) -> bool:
        while not self._stopped.is_set():
            try:
                self.read.put(item, timeout=TURN)
            except queue.Full:
                continue
            return True
        return False
