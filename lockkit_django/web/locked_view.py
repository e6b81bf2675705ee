"""What ``lock_view`` does to a view.

Order: name → lock → ``atomic(durable=True)`` for the databases that have ATOMIC_REQUESTS → view →
render → COMMIT or ROLLBACK → release. Guarantee: whoever gets the lock next sees what this view
committed. Limit: a process paused past its lease may still commit; its COMMIT is refused if the
loss is known before it is sent, and ``request.lease.fencing_token`` closes the rest.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import CoroutineType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from asgiref.sync import iscoroutinefunction, sync_to_async

from lockkit.leases.lease import at_once, give_back, value
from lockkit.model.errors import AcquireTimeout, ConfigurationError, LeaseLost, LockError
from lockkit.runtime.aio_run import to_its_end
from lockkit.web.refusal import refusal_of
from lockkit.web.view_lock import ViewLock, request_label
from lockkit_django.conf import view_settings
from lockkit_django.leases.aliases import alocks, locks
from lockkit_django.leases.client import give_back_from_loop, give_back_when_idle
from lockkit_django.leases.transactions import (
    Exempt,
    atomic_blocks,
    atomic_requests,
    refuse_atomic_requests,
    request_blocks_suspended,
)
from lockkit_django.web.refusals import drf_exception, refused, rendered
from lockkit_django.web.request import RequestView, http_request, of_async_class, request_and_rest
from lockkit_django.web.view_functions import (
    has_lock,
    mark_locked,
    pending_order,
    show_types,
)

if TYPE_CHECKING:
    from lockkit.web.view_lock import AnyAsyncLease, AnyLease
    from lockkit_django.orders.open_order import OpenOrder

T = TypeVar("T")
V = TypeVar("V", bound=Callable[..., Any])
OnBusy = Callable[[Any, AcquireTimeout], Any]


class LockedView:
    """What one ``lock_view(…)`` does to the views it decorates."""

    def __init__(self, view_lock: ViewLock, on_busy: OnBusy | None) -> None:
        self._view_lock = view_lock
        self._on_busy = on_busy

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
                return self._run(_Call(view, args, kwargs, None))
            return at_once(self._run(_Call(view, args, kwargs, exempt)))

        locked._non_atomic_requests = exempt  # type: ignore[attr-defined]  # never the view's own
        return locked

    def _around_coroutine(self, view: Any) -> Any:
        @functools.wraps(view)
        async def locked(*args: Any, **kwargs: Any) -> Any:
            return await self._run(_Call(view, args, kwargs, None))

        return locked

    async def _run(self, call: _Call) -> Any:
        """In a thread it awaits nothing."""
        with request_blocks_suspended(call.http) if call.exempt is not None else nullcontext():
            try:
                pending = pending_order(call.http)
                lease: AnyLease | AnyAsyncLease
                if call.exempt is not None:
                    lease = self._acquire(call, self._names(call))
                else:
                    lease = await self._acquire_in_loop(call, pending)
            except LockError as error:
                return await value(await call.do(self._refuse, call.request, error))
            if pending is not None:
                pending.adopt(lease)  # the middleware gives it back, after the order's COMMIT
                return await self._run_in_order(call, lease, pending)
            return await self._run_under(call, lease)

    def _acquire(self, call: _Call, names: Sequence[str]) -> AnyLease:
        view_lock = self._view_lock
        return view_lock.acquire(locks[view_lock.alias], names, view_settings(), call.label)

    def _names(self, call: _Call) -> list[str]:
        request = RequestView(call.request, call.kwargs)
        return self._view_lock.names_for(request, call.request, *call.rest, **call.kwargs)

    async def _acquire_in_loop(
        self, call: _Call, pending: OpenOrder | None
    ) -> AnyLease | AnyAsyncLease:
        """The loop's own lease, unless it must outlive the loop: in an order under WSGI the COMMIT
        comes later."""
        view_lock = self._view_lock
        if not view_lock.needs_user:
            names = self._names(call)
        else:
            if not hasattr(call.request, "user") and hasattr(call.http, "auser"):  # as a test may
                call.http.user = await call.http.auser()
            names = await call.do(self._names, call)
        if pending is None or pending.is_async:
            client = alocks[view_lock.alias]
            return await view_lock.acquire_async(client, names, view_settings(), call.label)
        return await self._acquire_in_thread(call, names)

    async def _acquire_in_thread(self, call: _Call, names: Sequence[str]) -> AnyLease:
        """The thread is its own: no other request runs there, which could enter the lock again."""
        taken: list[AnyLease] = []
        acquire = sync_to_async(
            lambda: taken.append(self._acquire(call, names)),
            thread_sensitive=False,
            executor=ThreadPoolExecutor(1),
        )
        try:
            await to_its_end(acquire())
        except BaseException:  # cancelled
            for lease in taken:
                await give_back_from_loop(lease)
            raise
        return taken[0]

    async def _run_under(self, call: _Call, lease: AnyLease | AnyAsyncLease) -> Any:
        """The view in its transactions, if there are any to open; a lost lease rolls them back."""
        aliases = call.atomic_requests()
        before = call.lend(lease)
        try:
            if aliases:
                with atomic_blocks(call.http, aliases, durable=True):
                    response = await call.response()
                    _check(lease, _LostBeforeCommit)
            else:
                response = await call.response()
                _check(lease, LeaseLost)
        except _LostBeforeCommit as error:
            await call.give_back(lease)
            return self._refuse(call.request, error)
        except BaseException:  # the view's own, or cancelled: what it has left running ends first
            await call.give_back(lease, wait=True)
            raise
        finally:
            call.http.lease = before
        await call.give_back(lease)
        return response

    async def _run_in_order(
        self, call: _Call, lease: AnyLease | AnyAsyncLease, pending: OpenOrder
    ) -> Any:
        """The view in the order's transaction, where that of ATOMIC_REQUESTS is a savepoint."""
        if has_lock(call.view):  # the innermost begins
            return await call.answer()
        is_thread = call.exempt is not None
        answer = await pending.resume(in_thread=is_thread)
        if answer is not None:
            return answer
        blocks = pending.besides(call.atomic_requests()) if is_thread else ()
        before = call.lend(lease)
        try:
            with atomic_blocks(call.http, blocks, durable=False):
                return await call.response()
        finally:
            call.http.lease = before

    def _refuse(self, request: Any, error: LockError) -> Any:
        """The answer to a request that did not run; what is a defect raises."""
        if isinstance(error, AcquireTimeout) and self._on_busy is not None:
            return self._on_busy(request, error)
        refusal = refusal_of(error, view_settings().busy_status)
        if refusal is None:
            raise error
        if request is not http_request(request):
            raise drf_exception(request, refusal, error) from error
        return refused(request, refusal, error)


class _LostBeforeCommit(LeaseLost):
    """Nothing was committed."""


class _Call:
    """One call of a view: in a thread, or awaited in an event loop, whose thread queries."""

    def __init__(self, view: Any, args: Any, kwargs: Any, exempt: Exempt | None) -> None:
        """``exempt``: None in an event loop, where Django refuses ATOMIC_REQUESTS."""
        self.view = view
        self._args = args
        self.kwargs = kwargs
        self.exempt = exempt
        self.request, self.rest = request_and_rest(args)
        self.http: Any = http_request(self.request)

    @property
    def label(self) -> str:
        return request_label(self.http.method or "", self.http.path)

    def atomic_requests(self) -> Sequence[str]:
        return () if self.exempt is None else atomic_requests(self.exempt.by_user)

    def lend(self, lease: AnyLease | AnyAsyncLease) -> Any:
        """``request.lease`` is that of the innermost lock_view. Returns that of the next one."""
        before = getattr(self.http, "lease", None)
        self.http.lease = lease
        return before

    async def do(self, function: Callable[..., T], *args: Any) -> T:
        """On the thread that has this request's connections."""
        if self.exempt is not None:
            return function(*args)
        return await sync_to_async(function, thread_sensitive=True)(*args)

    async def answer(self) -> Any:
        """What the view returns."""
        response = self.view(*self._args, **self.kwargs)
        if self.exempt is None:
            return await value(response)
        if isinstance(response, CoroutineType):  # it would run after the release
            response.close()
            raise ConfigurationError(
                "lock_view is above a decorator that hides an async view: swap them"
            )
        return response

    async def response(self) -> Any:
        """The same, rendered: that may query."""
        response = await self.answer()
        if not callable(getattr(response, "render", None)):
            return response
        return await self.do(rendered, self.request, response)

    async def give_back(self, lease: Any, *, wait: bool = False) -> None:
        """``wait``: for a query that a cancelled view has left behind in its thread."""
        if self.exempt is not None:
            give_back(lease)
        elif wait:
            await to_its_end(give_back_when_idle(lease))
        else:
            await give_back_from_loop(lease)


def _check(lease: AnyLease | AnyAsyncLease, kind: type[LeaseLost]) -> None:
    """The last look: before the COMMIT, if there is one. Raises an error of that kind."""
    if lease.lost:
        raise kind(f"the lease on {lease.name!r} was lost while its view ran", name=lease.name)
