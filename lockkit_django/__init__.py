"""lockkit for Django: locks configured in the settings, and views that hold one while they run.

>>> from lockkit_django import lock_view, locks

``locks["default"]`` is a client for the alias of that name in ``LOCKKIT``; ``alocks`` is the same
for coroutines. Importing this package needs no settings and does no I/O.
"""

from __future__ import annotations

from lockkit.model.errors import DriverMissing, OpenTransaction

try:
    from lockkit_django.leases.client import alocks, locked, locks
    from lockkit_django.web.lock_view import lock_view
    from lockkit_django.web.request import AsyncLockedRequest, LockedRequest
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in ("django", "asgiref"):
        raise
    raise DriverMissing("lockkit_django needs Django: pip install 'lockkit[django]'") from error

__all__ = [
    "AsyncLockedRequest",
    "LockedRequest",
    "OpenTransaction",
    "alocks",
    "lock_view",
    "locked",
    "locks",
]
