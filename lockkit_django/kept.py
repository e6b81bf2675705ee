"""``lock_view(hold="response")``: a lease that is given back when its response is closed.

Django closes a response when its body is sent or its client is gone, under WSGI as under ASGI, and
then not in the event loop. So the lease is of the blocking client, also for an async view, whose
loop may have ended by then.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.http import HttpResponseBase

from lockkit.views import Guard, give_back
from lockkit_django.conf import view_settings
from lockkit_django.facts import http_request
from lockkit_django.handler import locks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockkit.views import AnyLease

__all__ = ["acquire_in_thread", "give_back_in_thread", "until_closed"]


def until_closed(request: Any, response: Any, lease: AnyLease) -> Any:
    """Have the lease given back when the response is closed, or when nobody has it any more: a
    client that leaves during the view, or a middleware that answers something else. Returns it.
    """
    if not isinstance(response, HttpResponseBase):  # Django will refuse it
        give_back(lease)
        return response
    http: Any = http_request(request)
    http.lease = lease  # for the body, which is made after the view
    ended = weakref.finalize(response, give_back, lease)
    ended.atexit = False
    closers: list[Any] = response._resource_closers  # type: ignore[attr-defined]  # no other way
    closers.append(ended)
    return response


async def acquire_in_thread(guard: Guard, names: Sequence[str], label: str) -> AnyLease:
    """A lease of the blocking client. Cancelled, what is granted later is given back at once."""
    acquire = sync_to_async(guard.acquire, thread_sensitive=False)
    task = asyncio.ensure_future(acquire(locks[guard.alias], names, view_settings(), label))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(_unwanted)
        raise


async def give_back_in_thread(lease: AnyLease) -> None:
    await sync_to_async(give_back, thread_sensitive=False)(lease)


def _unwanted(acquired: asyncio.Future[AnyLease]) -> None:
    if not acquired.cancelled() and acquired.exception() is None:
        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, give_back, acquired.result())  # type: ignore[unused-awaitable]
