"""The release after the work is done: what goes wrong in it is logged, and the work stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockkit.model.errors import BackendError
from lockkit.model.log import log

if TYPE_CHECKING:
    from lockkit.leases.aio_client import AsyncLease
    from lockkit.leases.client import Lease
    from lockkit.leases.multi import AsyncMultiLease, MultiLease

    AnyLease = Lease | MultiLease
    AnyAsyncLease = AsyncLease | AsyncMultiLease

__all__ = ["give_back", "give_back_async"]


def give_back(lease: AnyLease) -> None:
    """Release after the view is done. What goes wrong here is logged: the answer stands.

    The caller has checked the lease at the last moment at which everything could be undone.
    """
    try:
        kept = lease.release()
    except BackendError as error:
        log.warning("release of %r not confirmed: %s", lease.name, error)
    else:
        _warn_if_lost(lease.name, kept)


async def give_back_async(lease: AnyAsyncLease) -> None:
    """The same, awaited."""
    try:
        kept = await lease.release()
    except BackendError as error:
        log.warning("release of %r not confirmed: %s", lease.name, error)
    else:
        _warn_if_lost(lease.name, kept)


def _warn_if_lost(name: str, kept: bool) -> None:
    if not kept:
        log.warning("the lease on %r was lost before its release", name)
