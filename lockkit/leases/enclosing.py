"""Clients of adapters, by alias: their locks enclose transactions, never the other way round.

A lock that is acquired inside a transaction is released before that commits, so somebody else can
take it and read what was there before. Such an acquire raises OpenTransaction, unless it is told
otherwise by ``in_atomic="allow"`` or ``until="commit"``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar, Unpack

from lockkit.leases.client import Clients, Lock, LockClient
from lockkit.leases.kinds import RWLock
from lockkit.leases.until import (
    CommitLock,
    InAtomic,
    InAtomicOptions,
    Transaction,
    TransactionOptions,
    Until,
    check_in_atomic,
    check_until,
)
from lockkit.model.checks import unknown_key
from lockkit.model.options import MutexOptions
from lockkit.stores.registry import load_store

if TYPE_CHECKING:
    from lockkit.leases.multi import MultiLock
    from lockkit.model.settings import AliasSettings

C = TypeVar("C", bound="EnclosingClient")


class AsyncOptions(MutexOptions, InAtomicOptions, total=False):
    """For type checkers: those of all kinds. Which kind takes which is checked when it is made."""


class Options(AsyncOptions, TransactionOptions, total=False):
    """The same, of the blocking client."""


class EnclosingClient(LockClient):
    """``LockClient``, whose locks refuse to be acquired inside a transaction of this thread."""

    _own_options = TransactionOptions.__optional_keys__

    if TYPE_CHECKING:

        def lock(self, name: str, **options: Unpack[Options]) -> Lock: ...
        def semaphore(self, name: str, permits: int, **options: Unpack[Options]) -> Lock: ...
        def rwlock(self, name: str, **options: Unpack[Options]) -> RWLock[Lock]: ...
        def multi(
            self,
            *names: str,
            kind: str = "mutex",
            permits: int | None = None,
            **options: Unpack[Options],
        ) -> MultiLock: ...

    @staticmethod
    @abstractmethod
    def _refuse(name: str) -> None:
        """Raise OpenTransaction for a lock of this name, if a transaction is open."""

    @staticmethod
    @abstractmethod
    def _transactions() -> Sequence[Transaction]:
        """Those that ``until="commit"`` is about."""

    def _class(
        self, in_atomic: InAtomic = "refuse", until: Until | None = None
    ) -> Callable[..., Lock]:
        if in_atomic != "refuse":
            check_in_atomic(in_atomic)
        if until is not None:
            check_until(until)
            return partial(CommitLock, self._transactions)
        return _EnclosingLock if in_atomic == "refuse" else Lock


class _EnclosingLock(Lock):
    __slots__ = ()
    _client: EnclosingClient

    def _permitted(self) -> None:
        """Raises OpenTransaction inside a transaction, unless the lock was held before that began
        and is entered again."""
        if not self._is_inside():
            self._client._refuse(self.name)


class ClientsByAlias(Clients[C]):
    """``clients["default"]``: one client per alias, for all threads and tasks of this process.

    A forked child goes on with the same clients, which make connections of their own. Raises
    ConfigurationError for an alias that is not in LOCKKIT, or a wrong setting.
    """

    def __init__(self, read: Callable[[], Mapping[str, AliasSettings]], kind: type[C]) -> None:
        """``read``: the settings, asked for when they are first needed. Raises nothing."""
        super().__init__(self._of_alias)
        self._read = read
        self._kind = kind
        self._settings: Mapping[str, AliasSettings] | None = None

    def __iter__(self) -> Iterator[str]:
        return iter(self._known())

    def close(self) -> None:
        """Close the clients' connections. Still usable; reconnects on demand."""
        for client in list(self._clients.values()):
            client.close()

    def reset(self) -> None:
        """Close and forget all clients, and the settings."""
        with self._mutex:
            clients, self._clients = self._clients, {}
            self._settings = None
        for client in clients.values():
            client.close()

    def _of_alias(self, alias: str) -> C:
        aliases = self._known()
        if alias not in aliases:
            raise unknown_key("LOCKKIT", alias, aliases)
        return self._kind(load_store(aliases[alias]), aliases[alias])

    def _known(self) -> Mapping[str, AliasSettings]:
        if self._settings is None:
            self._settings = self._read()
        return self._settings
