"""The kinds of locks that a client makes, for both the blocking and the asyncio API."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar, Unpack

from lockkit.leases.elsewhere import ABLE
from lockkit.leases.lease import BaseLease
from lockkit.leases.lock import BaseClient, BaseLock
from lockkit.model.checks import (
    check_flag,
    check_kind,
    check_label,
    check_owner,
    check_permits,
)
from lockkit.model.errors import ConfigurationError, UnsupportedCapability
from lockkit.model.names import check_name, warn_of_fields
from lockkit.model.options import (
    KindOptions,
    LockOptions,
    MutexOptions,
    OwnedOptions,
    check_options,
)
from lockkit.model.types import Kind, Usage
from lockkit.stores.contract import Listed, Reentrant, Shared

MUTEX, BARGE = Usage(), Usage(fair=False)

LOCK_OPTIONS, OWNED_OPTIONS, MUTEX_OPTIONS, KIND_OPTIONS = (
    kind.__optional_keys__ for kind in (LockOptions, OwnedOptions, MutexOptions, KindOptions)
)

L = TypeVar("L", bound=BaseLock[Any])
AnyLease = TypeVar("AnyLease", bound=BaseLease)
AnyLock = TypeVar("AnyLock")


class RWLock(Generic[AnyLock]):
    """Two locks on one name, one to read and one to write. Holds nothing itself."""

    __slots__ = ("_read", "_write")

    def __init__(self, read: AnyLock, write: AnyLock) -> None:
        self._read = read
        self._write = write

    def read(self) -> AnyLock:
        """The lock of readers: they share the name."""
        return self._read

    def write(self) -> AnyLock:
        """The lock of a writer: it holds the name alone."""
        return self._write

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._read!r}>"


class Kinds(BaseClient[AnyLease], Generic[L, AnyLease]):
    """A client of either API; ``L`` is the class of its locks."""

    _own_options: ClassVar[frozenset[str]] = frozenset()
    """Options that an adapter adds: its ``_class`` takes them, and its methods declare them."""

    def lock(self, name: str, **options: Unpack[MutexOptions]) -> L:
        """A lock on ``name``. No I/O yet.

        ttl: seconds a lease lives unrenewed. timeout: seconds ``acquire`` waits; 0: not at all;
        None: for ever. label: a text that people see beside the owner. on_lost: called with the
        lease, once, when it is lost: see ``Lease``. Raises ConfigurationError.

        reentrant=True: the thread or task that holds the lock may acquire it again. The store is
        asked only if the claim must last longer; if it is gone by then, that raises LeaseLost.
        The name is free when all leases are released.
        owner, for a reentrant lock: a text instead of the thread or task. All that give the same
        text may acquire the lock again, in any process; their leases have one fencing token.
        A reentrant lock is a kind of its own: see KindMismatch.

        fair=False: the lock is taken ahead of the waiters whenever there is room. Limit: a release
        hands a mutex to its first waiter, so with waiters there is room only from the moment when a
        lease expires to the next request.
        """
        own = self._own("lock()", options, MUTEX_OPTIONS)
        kind = "reentrant" if check_flag("reentrant", options.get("reentrant", False)) else "mutex"
        return self._made(self._usage(kind, options), own, name, options)

    def semaphore(self, name: str, permits: int, **options: Unpack[LockOptions]) -> L:
        """A lock that up to ``permits`` leases hold at once; each lease is one permit.

        Each permit expires by itself. The other arguments are those of ``lock``. Guarantee: at any
        moment of the store's clock, no more than ``permits`` leases are live. Limits: the holders
        write at the same time, so their leases cannot fence a write; and each step of the store
        reads all leases on the name. If the number of permits differs between the holders and the
        lock that asks, the smallest applies. Raises ConfigurationError or UnsupportedCapability.
        """
        own = self._own("semaphore()", options, LOCK_OPTIONS)
        usage = self._usage("semaphore", options, check_permits(permits))
        return self._made(usage, own, name, options)

    def rwlock(self, name: str, **options: Unpack[OwnedOptions]) -> RWLock[L]:
        """A lock that many may hold to read, or one to write: see its ``read`` and ``write``.

        The arguments are those of ``lock``. Readers and writers are served in the order in which
        they came. Readers that come one after the other read together, and wait behind a writer
        that came before them. The thread or task that holds the lock may acquire it again, ahead of
        the waiters: otherwise it would wait for itself. owner: a text instead of the thread or
        task, as in ``lock``. A reader that asks to write gets UpgradeRefused at once; a writer may
        ``downgrade()`` its lease. Only a write lease can fence a write. Raises ConfigurationError
        or UnsupportedCapability.
        """
        own = self._own("rwlock()", options, OWNED_OPTIONS)
        read, write = (self._usage(kind, options) for kind in ("read", "write"))
        return RWLock(self._made(read, own, name, options), self._made(write, own, name, options))

    def _maker(self, kind: str, **options: Any) -> Callable[..., L]:
        """A function that makes locks of a kind ("mutex", "reentrant", "read", "write" or
        "semaphore") from a checked name and a label. The options are checked once, now."""
        known = LOCK_OPTIONS if kind == "semaphore" else KIND_OPTIONS
        permits = options.pop("permits", None)
        own = self._own("multi()", options, known)
        check_kind(kind, permits)
        terms = self._terms(self._usage(kind, options, permits or 0), options)
        return partial(self._class(**own), self, terms)

    def _made(
        self, usage: Usage, own: Mapping[str, Any], name: str, options: Mapping[str, Any]
    ) -> L:
        make = self._class(**own)
        name, label = check_name(name), check_label(options.get("label", ""))
        if "{" in name:
            warn_of_fields(name)
        return make(self, self._terms(usage, options), name, label)

    def _own(
        self, where: str, options: Mapping[str, object], known: frozenset[str]
    ) -> Mapping[str, Any]:
        """The adapter's options among these. Raises ConfigurationError for an unknown option."""
        if options.keys() <= known:
            return {}
        own = self._own_options
        check_options(where, options, {*known, *own})
        return {key: options[key] for key in own & options.keys()}

    def _usage(self, kind: str, options: Mapping[str, Any], permits: int = 0) -> Usage:
        """How the name is used. Raises ConfigurationError or UnsupportedCapability."""
        owner = check_owner(options.get("owner", ""))
        fair = check_flag("fair", options.get("fair", True))
        if kind == "mutex":
            if owner:
                raise ConfigurationError(
                    "owner is for a lock that can be entered again: add reentrant=True, or use a "
                    "reader-writer lock"
                )
            return MUTEX if fair else BARGE
        if kind == "reentrant":
            if owner and not isinstance(self.store, Reentrant):
                raise self._cannot(
                    Reentrant, "locks are reentrant within a client only, and take no owner"
                )
            return Usage(Kind.REENTRANT, owner=owner, fair=fair)
        if not isinstance(self.store, Shared):
            raise self._cannot(Shared, "there are no semaphores and no reader-writer locks")
        if kind == "semaphore":
            return Usage(Kind.SEMAPHORE, permits, shared=True, fair=fair)
        return Usage(Kind.RW, shared=kind == "read", owner=owner, fair=fair)

    @abstractmethod
    def _class(self) -> Callable[..., L]:
        """A function that makes a lock from a client, terms, a name and a label. An adapter may
        choose it by its own options, which users give to ``lock`` and its like."""

    def _several(self, names: Sequence[str], kind: str, options: KindOptions) -> list[L]:
        """One lock for each different name, in the order in which everybody acquires them."""
        if not names:
            raise ConfigurationError("a multi-lock needs at least one name")
        in_order = sorted({check_name(name) for name in names}, key=str.encode)
        most = self.store.most
        if most is not None and len(in_order) > most:
            raise ConfigurationError(
                f"{len(in_order)} names at once need as many sessions of the process: it may have "
                f"{most}, which is max_sessions"
            )
        label = check_label(options.pop("label", ""))
        make = self._maker(kind, **options)
        return [make(name, label) for name in in_order]

    @property
    def _listed(self) -> Listed:
        """The store, for operators. Raises UnsupportedCapability if it cannot list its leases."""
        if not isinstance(self.store, Listed):
            raise self._cannot(Listed, "nothing can be listed")
        return self.store

    def _cannot(self, trait: Any, what: str) -> UnsupportedCapability:
        return UnsupportedCapability(
            f"in the store of {self.settings.title} {what}; it can be done in these stores: "
            f"{ABLE[trait]}"
        )
