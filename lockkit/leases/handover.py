"""Leases that outlive what took them: the event loop, the task or the thread of a view."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockkit.leases.client import Lease, LockClient
from lockkit.leases.multi import AsyncMultiLease, MultiLease
from lockkit.model.errors import ConfigurationError
from lockkit.runtime import entrants

if TYPE_CHECKING:
    from lockkit.web.view_lock import AnyAsyncLease, AnyLease


def handed_over(lease: AnyAsyncLease, client: LockClient) -> AnyLease:
    """The same claim as a lease of a blocking client of the same store, which renews it from now
    on, and which may be released in any thread, also when the event loop has ended.

    No I/O. ``lease`` counts as released then. Raises what the start of a thread raises: then all
    is as before. Limit: not for a claim that other leases share, or with an ``on_lost``.
    """
    leases = [lease[name] for name in lease.names]
    for each in leases:
        if each._hold.on_lost or each._hold.users > 1:
            raise ConfigurationError(f"{each!r} cannot be handed over: it is not for it alone")
    try:
        for each in leases:  # by both for a moment, and never by none
            client._watchdog.watch(each._hold)
    except BaseException:  # interrupted, or no thread can be started to renew it
        for each in leases:
            client._watchdog.unwatch(each._hold)
        raise
    blocking = [Lease(client, each._hold) for each in leases]
    for each in leases:
        each._hand_over()
    return MultiLease(client, blocking) if isinstance(lease, AsyncMultiLease) else blocking[0]


def leave_thread(lease: AnyLease) -> None:
    """The lease goes on without the thread that took it: what runs there next does not enter by it,
    nor by whatever else the thread had entered before."""
    for each in (lease[name] for name in lease.names):
        entrants.part_from_thread(each._hold.request.entrant)
