"""``lock_view(hold="response")``: a lease that is given back when its response is closed.

Django closes a response when its body is sent or its client is gone, under WSGI as under ASGI, and
then not in the event loop. So the lease is of the blocking client, also for an async view, whose
loop may have ended by then: the loop waits for it, and hands it over. It outlives the thread or the
task of its view as well, which may run the next request: so neither is who may enter it again.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from django.http import HttpResponseBase

from lockkit.leases.handover import handed_over, leave_thread
from lockkit.leases.lease import give_back, give_back_async
from lockkit.model.errors import AcquireTimeout
from lockkit.runtime.tokens import new_token
from lockkit.web.view_lock import ViewLock
from lockkit_django.conf import view_settings
from lockkit_django.leases.aliases import alocks, locks
from lockkit_django.web.request import http_request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockkit.web.view_lock import AnyLease

OWNER = "_lockkit_owner"
"""Attribute of a request: who holds what must outlive its event loop."""


def until_closed(request: Any, response: Any, lease: AnyLease) -> Any:
    """Have the lease given back when the response is closed, or when nobody has it any more: a
    client that leaves during the view, or a middleware that answers something else. Returns it.
    """
    if not isinstance(response, HttpResponseBase):  # Django will refuse it
        give_back(lease)
        return response
    http: Any = http_request(request)
    http.lease = lease  # for the body, which is made after the view
    leave_thread(lease)
    ended = weakref.finalize(response, give_back, lease)
    ended.atexit = False
    closers: list[Any] = response._resource_closers  # type: ignore[attr-defined]  # no other way
    closers.append(ended)
    return response


async def acquire_to_outlive_loop(
    view_lock: ViewLock, request: Any, names: Sequence[str], label: str
) -> AnyLease:
    """A lease of the blocking client, for which the event loop has waited: no thread does.

    Its owner is the request. Raises as ``view_lock.acquire``; cancelled, it leaves nothing.
    """
    client = locks[view_lock.alias]
    owner = vars(http_request(request)).setdefault(OWNER, new_token())
    try:
        lease = await view_lock.acquire_async(
            alocks[view_lock.alias], names, view_settings(), label, owner=owner
        )
    except AcquireTimeout as refusal:
        refusal.retry_after = client.retry_after(refusal.name or "")
        raise
    try:
        return handed_over(lease, client)
    except BaseException:  # no thread can be started to renew it, or interrupted: nobody has it
        await give_back_async(lease)
        raise
