"""What ``lock_view`` does to a view.

Order: name → lock → ``atomic(durable=True)`` for the databases that have ATOMIC_REQUESTS → view →
render → COMMIT or ROLLBACK → release. Guarantee: whoever gets the lock next sees what this view
committed. Limit: a process paused past its lease may still commit; its COMMIT is refused if the
loss is known before it is sent, and ``request.lease.fencing_token`` closes the rest.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

from asgiref.sync import iscoroutinefunction, sync_to_async

from lockkit.leases.client import Lease
from lockkit.leases.lease import give_back
from lockkit.leases.multi import MultiLease
from lockkit.model.errors import AcquireTimeout, ConfigurationError, LeaseLost, LockError
from lockkit.runtime.either import value
from lockkit.web.refusal import log_refusal, refusal_of
from lockkit.web.view_lock import ViewLock, request_label
from lockkit_django.conf import view_settings
from lockkit_django.leases.aliases import alocks, locks
from lockkit_django.leases.client import (
    give_back_from_loop,
    to_its_end,
    until_thread_is_idle,
)
from lockkit_django.leases.transactions import (
    Exempt,
    atomic_blocks,
    atomic_requests,
    refuse_atomic_requests,
    request_blocks_suspended,
)
from lockkit_django.web.refusals import drf_exception, refusal_response, rendered
from lockkit_django.web.request import RequestView, http_request, of_async_class, request_and_rest
from lockkit_django.web.until_closed import (
    acquire_to_outlive_loop,
    until_closed,
)
from lockkit_django.web.view_functions import (
    PendingOrder,
    has_lock,
    mark_locked,
    pending_order,
    show_types,
)

if TYPE_CHECKING:
    from lockkit.web.view_lock import AnyAsyncLease, AnyLease

V = TypeVar("V", bound=Callable[..., Any])
OnBusy = Callable[[Any, AcquireTimeout], Any]


class LockedView:
    """What one ``lock_view(…)`` does to the views it decorates."""

    def __init__(
        self, view_lock: ViewLock, on_busy: OnBusy | None, *, durable: bool, keep: bool
    ) -> None:
        self._view_lock = view_lock
        self._on_busy = on_busy
        self._durable = durable
        self._keep = keep  #: until the response is closed

    def around(self, view: V) -> V:
        if inspect.isclass(view):
            raise ConfigurationError(
                f"decorate a method of {view.__name__}: "
                f"@method_decorator(lock_view(…), name='dispatch')"
            )
        around = self._around_coroutine if iscoroutinefunction(view) else self._around
        wrapper = mark_locked(around(view), self._view_lock)
        show_types(wrapper, view)
        return cast(V, wrapper)

    def _around(self, view: Any) -> Any:
        exempt = Exempt(getattr(view, "_non_atomic_requests", ()))

        @functools.wraps(view)
        def locked(*args: Any, **kwargs: Any) -> Any:
            if of_async_class(view, args):
                refuse_atomic_requests(exempt)
                return self._run_async(view, args, kwargs)
            return self._run(view, exempt, args, kwargs)

        locked._non_atomic_requests = exempt  # type: ignore[attr-defined]  # never the view's own
        return locked

    def _around_coroutine(self, view: Any) -> Any:
        @functools.wraps(view)
        async def locked(*args: Any, **kwargs: Any) -> Any:
            return await self._run_async(view, args, kwargs)

        return locked

    def _run(self, view: Any, exempt: Exempt, args: Any, kwargs: Any) -> Any:
        request, rest = request_and_rest(args)
        try:
            names = self._view_lock.names_for(
                RequestView(request, kwargs), request, *rest, **kwargs
            )
            client = locks[self._view_lock.alias]
        except LockError as error:
            return self._refuse(request, error)
        with request_blocks_suspended(http_request(request)):
            try:
                lease = self._view_lock.acquire(client, names, view_settings(), _label(request))
            except LockError as error:
                return self._refuse(request, error)
            pending = pending_order(http_request(request))
            if pending is not None:
                pending.order.adopt(lease)  # the middleware gives it back, after the order's COMMIT
                if has_lock(view):  # the innermost begins
                    return view(*args, **kwargs)
                return self._work_in(pending, request, lease, exempt, lambda: view(*args, **kwargs))
            try:
                response = self._work(request, lease, exempt, lambda: view(*args, **kwargs))
            except BaseException:  # the view's own, or interrupted: undone by now
                give_back(lease)
                raise
            if self._keep and not lease.lost:
                return until_closed(request, response, lease)
            give_back(lease)
            return response

    def _work(self, request: Any, lease: AnyLease, exempt: Exempt, view: Callable[[], Any]) -> Any:
        """The view in its transactions, if there are any to open; a lost lease rolls them back."""
        aliases = atomic_requests(exempt.by_user)
        try:
            with (
                _lease_on(request, lease),
                atomic_blocks(http_request(request), aliases, durable=self._durable),
            ):
                response = rendered(request, _no_coroutine(view()))
                _check(lease, undone=bool(aliases))
        except _LostBeforeCommit as error:
            return self._refuse(request, error)
        return response

    def _work_in(
        self,
        pending: PendingOrder,
        request: Any,
        lease: AnyLease,
        exempt: Exempt,
        view: Callable[[], Any],
    ) -> Any:
        """The view in the order's transaction, where that of ATOMIC_REQUESTS is a savepoint."""
        answer = pending.resume()
        if answer is not None:
            return answer
        blocks = pending.order.besides(atomic_requests(exempt.by_user))
        with _lease_on(request, lease), atomic_blocks(http_request(request), blocks, durable=False):
            return rendered(request, _no_coroutine(view()))

    async def _run_async(self, view: Any, args: Any, kwargs: Any) -> Any:
        request, rest = request_and_rest(args)
        user = await _user(request) if self._view_lock.needs_user else None
        try:
            view_of_request = RequestView(request, kwargs, user)
            names = self._view_lock.names_for(view_of_request, request, *rest, **kwargs)
            pending = pending_order(http_request(request))
            lease = await self._lease_for(request, pending, names, _label(request))
        except LockError as error:
            return await self._refuse_async(request, error)
        if pending is not None:
            pending.order.adopt(lease)
            return await self._run_in_order(pending, view, args, kwargs)
        try:
            with _lease_on(request, lease):
                response = await _rendered_async(request, await value(view(*args, **kwargs)))
                _check(lease, undone=False)
        except BaseException:  # cancelled as well: what the view left running must end first
            await to_its_end(_give_back_when_idle(lease))
            raise
        if self._keep and isinstance(lease, (Lease, MultiLease)):
            return until_closed(request, response, lease)
        await give_back_from_loop(lease)
        return response

    async def _run_in_order(self, pending: PendingOrder, view: Any, args: Any, kwargs: Any) -> Any:
        request, _ = request_and_rest(args)
        answer = None if has_lock(view) else await pending.aresume()
        if answer is not None:
            return answer
        with _lease_on(request, pending.order.leases[0]):
            return await _rendered_async(request, await value(view(*args, **kwargs)))

    async def _lease_for(
        self, request: Any, pending: PendingOrder | None, names: Sequence[str], label: str
    ) -> AnyLease | AnyAsyncLease:
        """The loop's own, unless it must outlive the loop: in an order under WSGI the COMMIT comes
        later, and so does the end of a response."""
        if (not self._keep) if pending is None else pending.order.is_async:
            client = alocks[self._view_lock.alias]
            return await self._view_lock.acquire_async(client, names, view_settings(), label)
        return await acquire_to_outlive_loop(self._view_lock, request, names, label)

    async def _refuse_async(self, request: Any, error: LockError) -> Any:
        if isinstance(error, AcquireTimeout) and iscoroutinefunction(self._on_busy):
            return await self._on_busy(request, error)
        return await sync_to_async(self._refuse, thread_sensitive=True)(request, error)

    def _refuse(self, request: Any, error: LockError) -> Any:
        """The answer to a request that did not run; what is a defect raises."""
        if isinstance(error, AcquireTimeout) and self._on_busy is not None:
            return self._on_busy(request, error)
        refusal = refusal_of(error, view_settings().busy_status)
        if refusal is None:
            raise error
        log_refusal(_label(request), refusal, why=error)
        if request is not http_request(request):
            raise drf_exception(refusal) from error
        return refusal_response(request, refusal)


class _LostBeforeCommit(LeaseLost):
    """Nothing was committed."""


def _label(request: Any) -> str:
    http = http_request(request)
    return request_label(http.method or "", http.path)


def _check(lease: AnyLease | AnyAsyncLease, *, undone: bool) -> None:
    """The last look before the COMMIT. ``undone``: whether what the view did is rolled back."""
    if lease.lost:
        kind = _LostBeforeCommit if undone else LeaseLost
        raise kind(f"the lease on {lease.name!r} was lost while its view ran", name=lease.name)


@contextmanager
def _lease_on(request: Any, lease: AnyLease | AnyAsyncLease) -> Iterator[None]:
    """``request.lease``: of the innermost lock_view."""
    http: Any = http_request(request)
    before = getattr(http, "lease", None)
    http.lease = lease
    try:
        yield
    finally:
        http.lease = before


def _no_coroutine(response: Any) -> Any:
    """An async view that something hides would run after the release."""
    if inspect.iscoroutine(response):
        response.close()
        raise ConfigurationError(
            "lock_view is above a decorator that hides an async view: swap them"
        )
    return response


async def _user(request: Any) -> Any:
    """The user, without a query in the event loop. DRF's request has one of its own."""
    if request is not http_request(request):
        return await sync_to_async(getattr, thread_sensitive=True)(request, "user")
    auser = getattr(http_request(request), "auser", None)
    return None if auser is None else await auser()


async def _give_back_when_idle(lease: AnyLease | AnyAsyncLease) -> None:
    """A view that was cancelled may have left a query behind, which goes on in its thread."""
    try:
        await until_thread_is_idle()
    finally:
        await give_back_from_loop(lease)


async def _rendered_async(request: Any, response: Any) -> Any:
    """Rendering is synchronous in Django, and may query."""
    if not callable(getattr(response, "render", None)):
        return response
    return await sync_to_async(rendered, thread_sensitive=True)(request, response)
