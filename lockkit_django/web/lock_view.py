"""``@lock_view``: a view that runs while it holds a lock.

Order: name → lock → ``atomic(durable=True)`` for the databases that have ATOMIC_REQUESTS → view →
render → COMMIT or ROLLBACK → release. Guarantee: the next holder sees what this view
committed. Limit: a process that was paused until its lease expired may still commit. If it notices
the loss before COMMIT is sent, it rolls back. Otherwise only ``request.lease.fencing_token`` helps:
see ``lockkit.fencing``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any, Never, TypeVar, cast

from asgiref.sync import iscoroutinefunction, sync_to_async

from lockkit.leases.decorating import refuse_operation
from lockkit.leases.lease import give_back, result_of, value
from lockkit.model.errors import AcquireTimeout, ConfigurationError, LeaseLost, LockError
from lockkit.orders.visit import options_in
from lockkit.runtime.aio_run import to_its_end
from lockkit.web.refusal import log_refusal, refusal_of, request_label
from lockkit.web.view_lock import ViewLock, mark, note_lease
from lockkit_django.conf import view_settings
from lockkit_django.leases.client import (
    PATIENCE,
    alocks,
    give_back_from_loop,
    has_own_thread,
    locks,
)
from lockkit_django.leases.transactions import note_each_request
from lockkit_django.web.refusals import drf_exception, refused, rendered
from lockkit_django.web.request import STAYS, RequestView, http_request, request_and_rest
from lockkit_django.web.request_blocks import (
    Exempt,
    around,
    atomic_blocks,
    request_blocks_suspended,
)
from lockkit_django.web.view_functions import class_of, has_lock_below, pending_order, show_types

if TYPE_CHECKING:
    from lockkit.web.view_lock import AnyAsyncLease, AnyLease

T = TypeVar("T")
V = TypeVar("V", bound=Callable[..., Any])
OnBusy = Callable[[Any, AcquireTimeout], Any]

LENT = "_lockkit_lent"
"""Attribute of a request: the leases of all lock_views around it, the outermost first."""


class lock_view(ViewLock[OnBusy]):  # noqa: N801  as decorators are written
    """Have a view hold the lock of this name, or of all these names, while it runs.

    - ``names``: each is a template over the request, such as ``"stock:{sku:str}"``, or a callable
      that gets the view's arguments and returns a name. Several names are taken all or none.
    - ``timeout``: seconds to wait (default: that of LOCKKIT_VIEWS; 0: do not wait; None: for ever).
    - ``ttl``: seconds that the lease lives unrenewed (default: that of the alias).
    - ``alias``: the key in LOCKKIT of the store that keeps the lock.
    - ``kind``: "mutex", "reentrant", "read" or "write" of a reader-writer lock, or "semaphore" with
      its number of ``permits``.
    - ``on_busy(request, error)``: returns the response if the lock is busy (default: 423 with
      Retry-After; 503 if too many requests wait already).

    The answer is 503 if the store is down, and if the lease is lost before the COMMIT: then the
    view is rolled back. Without ATOMIC_REQUESTS this cannot be done, and LeaseLost is raised.

    For function views, methods of class views (also by ``method_decorator``), ``as_view()``, and
    DRF's views and actions; sync and async. Raises ConfigurationError at once for a wrong
    argument. The lease is ``request.lease`` while the view runs; that of several names is a
    ``MultiLease``: ``request.lease["stock:42"].fencing_token``.
    """

    BUSY_TAKES = ("request", "error")

    def __call__(self, view: V, /, *args: Never, **kwargs: Never) -> V:
        self.refuse_as_view(view, args, kwargs)
        refuse_operation("lock_view", view)
        if inspect.isclass(view):
            raise ConfigurationError(
                f"decorate a method of {view.__name__}: "
                f"@method_decorator(lock_view(…), name='dispatch')"
            )
        if options_in([view]).inside and class_of(view) is None:  # a class may have other methods
            raise ConfigurationError(
                "an order inside lock_view would commit after that lock is released: "
                "put @idempotent above @lock_view"
            )
        note_each_request()
        wrapper = around(view, functools.partial(self._run, view))
        mark(wrapper, self)
        show_types(wrapper, view)
        return cast(V, wrapper)

    async def _run(self, view: Any, exempt: Exempt | None, args: Any, kwargs: Any) -> Any:
        """See ``around``."""
        call = _Call(view, exempt, args, kwargs)
        with request_blocks_suspended(call.http) if call.in_thread else nullcontext():
            try:
                if call.in_thread:
                    lease = await self._take(call, locks, self._names_of(call))
                else:
                    lease = await self._take_in_loop(call)
            except LockError as error:
                if call.pending is not None:
                    call.pending.refused = True
                return await value(await call.do(self._refuse, call.request, error))
            if call.pending is None:
                return await self._run_under(call, lease)
            before = call.lend(lease)
            try:
                return await self._run_in_order(call)
            except BaseException:
                if call.pending.left:  # nothing is left of this try: another may take the lock
                    call.pending.leases.remove(lease)
                    await call.give_back(lease)
                raise
            finally:
                vars(call.http).update(before)

    async def _take_in_loop(self, call: _Call) -> Any:
        """Acquire with the loop's own client, unless the lease must outlive the loop: in an order
        under WSGI, the COMMIT comes after the end of the loop."""
        if not self.needs_user:
            names = self._names_of(call)
        else:
            if not hasattr(call.request, "user") and hasattr(call.http, "auser"):  # in a test
                call.http.user = await call.http.auser()
            names = await call.do(self._names_of, call)
        if call.pending is not None and not call.pending.is_async:
            return await to_its_end(call.do(lambda: result_of(self._take(call, locks, names))))
        return await self._take(call, alocks, names)

    async def _take(self, call: _Call, clients: Any, names: Sequence[str]) -> Any:
        label = request_label(call.http)
        lease = await self.acquire(clients[self.alias], names, view_settings(), label)
        if call.pending is not None:
            call.pending.adopt(lease)  # the middleware gives it back, after the order's COMMIT
        return lease

    def _names_of(self, call: _Call) -> list[str]:
        request = RequestView(call.request, call.kwargs)
        return self.names_for(request, call.request, *call.rest, **call.kwargs)

    async def _run_under(self, call: _Call, lease: AnyLease | AnyAsyncLease) -> Any:
        """Run the view in its transactions, if there are any; a lost lease rolls them back."""
        aliases = call.atomic_requests()
        before = call.lend(lease)
        looks = False
        stays = not aliases  # no ROLLBACK can take back what the view has done
        try:
            with atomic_blocks(call.http, aliases, durable=True) if aliases else nullcontext():
                response = await call.response(aliases)
                looks = True  # at the leases, for the last time before a COMMIT
                for each in (*before[LENT], lease) if aliases else (lease,):
                    each.check()
                looks = False
                stays = True
        except BaseException as error:  # also if cancelled: what the view left running ends first
            is_lost = looks and isinstance(error, LeaseLost)
            patience = None if has_own_thread() else PATIENCE
            await call.give_back(lease, when_idle=not is_lost, patience=patience)
            if not is_lost or stays or hasattr(call.http, STAYS):
                raise
            return self._refuse(call.request, cast(LeaseLost, error))  # nothing was committed
        finally:
            vars(call.http).update(before)
            if stays:
                setattr(call.http, STAYS, bool(aliases) or getattr(call.http, STAYS, False))
        idle = not call.in_thread and has_own_thread()  # the view may have given up a query
        await call.give_back(lease, when_idle=idle, patience=PATIENCE)
        return response

    async def _run_in_order(self, call: _Call) -> Any:
        """Run the view in the order's transaction, and in ATOMIC_REQUESTS on other databases."""
        if has_lock_below(call.view, call.http):  # the innermost lock begins the transaction
            around = call.atomic_requests() if call.in_thread else ()
            with atomic_blocks(call.http, around, durable=False):
                return await call.answer()
        answer = await call.pending.resume(in_thread=call.in_thread)
        if answer is not None:
            return answer
        blocks = call.pending.besides(call.atomic_requests()) if call.in_thread else ()
        try:
            with atomic_blocks(call.http, blocks, durable=False):
                response = await call.response([*blocks, *filter(None, [call.pending.database])])
                return call.pending.last_look(response, blocks)
        except BaseException as error:
            call.pending.left_by(error, blocks)
            raise

    def _refuse(self, request: Any, error: LockError) -> Any:
        """The answer to a request that has changed nothing. Raises an error that is a defect."""
        refusal = refusal_of(error, view_settings().busy_status)
        if isinstance(error, AcquireTimeout) and self._on_busy is not None:
            log_refusal(http_request(request), refusal, why=error)
            return self._on_busy(request, error)
        if request is not http_request(request):
            raise drf_exception(request, refusal, error) from error
        return refused(request, refusal, error)


class _Call:
    """One call of a view: in a thread, or awaited in an event loop, with queries in a thread."""

    def __init__(self, view: Any, exempt: Exempt | None, args: Any, kwargs: Any) -> None:
        self.view = view
        self._args = args
        self.kwargs = kwargs
        self._exempt = exempt
        self.in_thread = exempt is not None
        self.request, self.rest = request_and_rest(view, args)
        self.http: Any = http_request(self.request)
        self.pending: Any = pending_order(self.http)

    def atomic_requests(self) -> Sequence[str]:
        return () if self._exempt is None else self._exempt.atomic_requests()

    def lend(self, lease: AnyLease | AnyAsyncLease) -> dict[str, Any]:
        """Make this lease ``request.lease``. Returns the attributes to put back afterwards."""
        attributes = vars(self.http)
        further_out = attributes.get(LENT, ())
        before = {"lease": attributes.get("lease"), LENT: further_out}
        attributes.update({"lease": lease, LENT: (*further_out, lease)})
        note_lease(lease)
        return before

    async def do(self, function: Callable[..., T], *args: Any) -> T:
        """Call it on the thread that has this request's connections."""
        if self.in_thread:
            return function(*args)
        return await sync_to_async(function, thread_sensitive=True)(*args)

    async def answer(self) -> Any:
        response = self.view(*self._args, **self.kwargs)
        if not self.in_thread:
            response = await value(response)
        elif isinstance(response, CoroutineType):  # it would run after the release
            response.close()
            raise ConfigurationError(
                "lock_view is above a decorator that hides an async view: swap them"
            )
        if _is_streamed(response):
            raise ConfigurationError(
                "a view below lock_view returned a generator, which would run after the release: "
                "take the lock by hand in the generator's body"
            )
        return response

    async def response(self, aliases: Sequence[str]) -> Any:
        """What the view returns, rendered: templates may query. ``aliases``: the databases whose
        transactions are open around it."""
        response = await self.answer()
        if not aliases:
            setattr(self.http, STAYS, True)
        render = getattr(response, "render", None)
        later = self.in_thread and iscoroutinefunction(render)  # no thread can await it
        if later or not callable(render):
            return response
        return await value(await self.do(rendered, self.request, response, aliases))

    async def give_back(
        self, lease: Any, *, when_idle: bool = False, patience: float | None = None
    ) -> None:
        if self.in_thread:
            give_back(lease)
        elif when_idle:
            await to_its_end(give_back_from_loop(lease, when_idle=True, patience=patience))
        else:
            await give_back_from_loop(lease)


def _is_streamed(response: Any) -> bool:
    """Whether it is the body of a generator function, which has not begun. Ninja makes a list of a
    generator expression, and of what ``iterator`` of a queryset returns."""
    frame = None
    if isinstance(response, GeneratorType):
        frame = response.gi_frame
    elif isinstance(response, AsyncGeneratorType):
        frame = response.ag_frame
    if frame is None or frame.f_code.co_name == "<genexpr>":
        return False
    return not frame.f_globals["__name__"].startswith("django.")
