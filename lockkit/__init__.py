"""Locks that hold across processes and machines, and that tell you when they no longer do.

>>> import lockkit
>>> locks = lockkit.connect("memory://")
>>> with locks.lock("nightly-report", ttl=60, timeout=0) as lease:
...     lease.check()
>>> locks.close()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Unpack

    from lockkit.leases.client import Lease, Lock, LockClient
    from lockkit.leases.default_locked import locked
    from lockkit.model.errors import (
        AcquireTimeout,
        BackendError,
        BackendUnavailable,
        ConfigurationError,
        DamagedRecord,
        DriverMissing,
        InvalidName,
        KindMismatch,
        LayoutMismatch,
        LeaseLost,
        LockError,
        LockHeld,
        MissingTable,
        OpenTransaction,
        OutcomeUnknown,
        StoreRefused,
        TooManySessions,
        TooManyWaiters,
        UnknownBackend,
        UnsupportedCapability,
        UpgradeRefused,
    )
    from lockkit.model.names import name
    from lockkit.model.options import ClientOptions
    from lockkit.model.types import LeaseState, LockInfo, LockState, Owner

    __version__: str

__all__ = [
    "AcquireTimeout",
    "BackendError",
    "BackendUnavailable",
    "ConfigurationError",
    "DamagedRecord",
    "DriverMissing",
    "InvalidName",
    "KindMismatch",
    "LayoutMismatch",
    "Lease",
    "LeaseLost",
    "LeaseState",
    "Lock",
    "LockClient",
    "LockError",
    "LockHeld",
    "LockInfo",
    "LockState",
    "MissingTable",
    "OpenTransaction",
    "OutcomeUnknown",
    "Owner",
    "StoreRefused",
    "TooManySessions",
    "TooManyWaiters",
    "UnknownBackend",
    "UnsupportedCapability",
    "UpgradeRefused",
    "connect",
    "locked",
    "name",
]


def connect(
    url: str | None = None, *, client: object = None, **options: Unpack[ClientOptions]
) -> LockClient:
    """Make a client for the store at ``url``. No connection is made before the first lock.

    Default: the store in $LOCKKIT_URL; if that is not set, an SQLite file of this user, with a
    RuntimeWarning. An empty ``url`` is an error, because an unset setting would otherwise lock in
    another store. ``client``, in place of a URL: a client or a pool of redis-py, or an engine of
    SQLAlchemy. The locks use its connections.

    The options are the settings of an alias in lower case, with these defaults: key_prefix
    "lockkit", ttl 30 (a lease lives so long unrenewed), acquire_timeout 10 (0: do not wait; None:
    for ever), max_hold 600, max_queue 100, options {}, backend None. Durations are seconds.

    Raises ConfigurationError.
    """
    from lockkit.leases.client import LockClient
    from lockkit.leases.default_store import connection_settings
    from lockkit.stores.registry import load_store

    settings = connection_settings(url, client, options)
    return LockClient(load_store(settings), settings)


_PLACES = {
    "leases.client": ("Lease", "Lock", "LockClient"),
    "leases.default_locked": ("locked",),
    "model.names": ("name",),
    "model.types": ("LeaseState", "LockInfo", "LockState", "Owner"),
}


def __getattr__(attribute: str) -> Any:
    """Import a name at its first use, because many programs import lockkit and use little of it."""
    from importlib import import_module

    if attribute == "aio":
        return import_module("lockkit.aio")
    if attribute == "__version__":
        return _version()
    if attribute not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {attribute!r}")
    place = next((place for place, names in _PLACES.items() if attribute in names), "model.errors")
    found = globals()[attribute] = getattr(import_module(f"{__name__}.{place}"), attribute)
    return found


def __dir__() -> list[str]:
    return [*globals(), *__all__]


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("lockkit")
    except PackageNotFoundError as error:  # a copy that is not installed
        raise AttributeError("lockkit is not installed, so its version is not known") from error
