"""``@idempotent``: the options of one view, and an order that is opened below the view's checks.

The steps are: lock → BEGIN and record → view. The middleware does COMMIT and release, after the
response is rendered. The transactions of ATOMIC_REQUESTS are opened here, under the order's lock:
Django's handler would open them before the lock is acquired.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

from django.db import connections
from django.http import HttpRequest

from lockkit.leases.decorating import refuse_operation
from lockkit.leases.lease import result_of, value
from lockkit.model.errors import ConfigurationError
from lockkit.orders import gate
from lockkit.orders.gate import OrderStopped, Runner
from lockkit.orders.idempotent import Idempotent, ordered_by
from lockkit.orders.settings import SAFE_METHODS
from lockkit.orders.visit import OPTIONS, ViewOptions, options_in
from lockkit_django.leases.transactions import sparing_tests, user_blocks
from lockkit_django.orders.open_order import MIDDLEWARE_RUNNER
from lockkit_django.orders.visit import LOOP, THREAD, Visit, entered, in_thread, open_order
from lockkit_django.web.request import http_request, request_and_rest
from lockkit_django.web.request_blocks import (
    Exempt,
    around,
    atomic_blocks,
    request_blocks_suspended,
)
from lockkit_django.web.view_functions import called_by, has_lock_below, is_operation, show_types

ORDER_OPTIONS = ("order_id", "required", "using", "atomic")
IN_CLASS = (
    "let {} inherit IdempotentMixin (in DRF), or use method_decorator(idempotent, name='dispatch')"
)

View = Callable[..., Any]


class IdempotentMixin:
    """For DRF views and viewsets: the order is opened after ``initial()``, so the view's own
    authentication, permissions and throttles apply, and run once.

    ``class Orders(IdempotentMixin, APIView)``. ``order_options``: the arguments of ``@idempotent``.
    """

    order_options: dict[str, Any] = {}  # noqa: RUF012  never changed, only replaced

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        others = (each for each in cls.__mro__ if not issubclass(each, IdempotentMixin))
        is_view = any(hasattr(each, "as_view") for each in others)
        if is_view and not hasattr(super(), "initial"):
            raise ConfigurationError(
                f"{cls.__name__} would make no orders: IdempotentMixin is for DRF and comes before "
                f"its class, as in class Orders(IdempotentMixin, APIView). On a view of Django's "
                f"use @method_decorator(idempotent, name='dispatch')"
            )

    @classmethod
    def as_view(cls, *args: Any, **kwargs: Any) -> Any:
        view = super().as_view(*args, **kwargs)  # type: ignore[misc]
        view._non_atomic_requests = Exempt(getattr(view, "_non_atomic_requests", ()))
        setattr(view, OPTIONS, _class_options(cls))
        return view

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        with sparing_tests():
            return super().dispatch(request, *args, **kwargs)  # type: ignore[misc]

    def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)  # type: ignore[misc]
        name = str(request.method).lower()
        known: list[str] = self.http_method_names  # type: ignore[attr-defined]
        handler = getattr(self, name, None) if name in known else None  # clients may send any name
        if handler is not None:
            view = getattr(http_request(request).resolver_match, "func", None)
            marked = (options_in([place]) for place in (view, handler))
            exempted = next((options for options in marked if options.exempt), None)
            options = exempted or _class_options(type(self))
            setattr(self, name, around(handler, partial(_run, handler, options), view))


def _class_options(cls: type[IdempotentMixin]) -> ViewOptions:
    return ordered_by(cls.__name__, ORDER_OPTIONS, **cls.order_options)


def _inside(view: View, options: ViewOptions) -> Any:
    refuse_operation("idempotent", view)
    if is_operation(view):
        raise ConfigurationError(
            "decorate_view(idempotent) would answer before Ninja has authenticated: put "
            "@idempotent directly on the function, below @api.post"
        )
    if hasattr(view, "login_url"):  # Django's decorators set it
        raise ConfigurationError(
            "@idempotent above @login_required, @permission_required or @user_passes_test would "
            "repeat answers to whoever they refuse: put it below them"
        )
    wrapper = around(view, partial(_run, view, options))
    show_types(wrapper, view)
    return wrapper


idempotent = Idempotent(_inside, ORDER_OPTIONS, in_class=IN_CLASS)


async def _run(
    view: View, options: ViewOptions, exempt: Exempt | None, args: Any, kwargs: Any
) -> Any:
    """See ``around``."""
    request, _ = request_and_rest(view, args)
    http = http_request(request)
    call = partial(_called, http, view, exempt, partial(view, *args, **kwargs))
    if http.method in SAFE_METHODS or options.exempt or _is_exempt(http, view):
        return await call()
    visit, served = _visit(request, view, options), partial(_served, http, exempt)
    suspended = nullcontext() if exempt is None else request_blocks_suspended(http)
    with _noting_errors(http), suspended:
        answer = await served(partial(entered, visit, begin=not has_lock_below(view, http)))
        if answer is not None:
            return answer
        opened = open_order(http)
        if opened is not None:
            opened.front = request
            try:
                return await call()
            except OrderStopped as stop:
                return await served(partial(gate.stopped, opened, stop))
    return await call()


def _is_exempt(http: HttpRequest, view: View) -> bool:
    """Whether this method, or the result of ``as_view``, is exempt although the class's
    ``dispatch`` makes orders."""
    called = called_by(view, http)
    callback = [http.resolver_match.func] if called else []  # type: ignore[union-attr]
    return any(options_in([place]).exempt for place in (*called, *callback))


@contextmanager
def _noting_errors(http: HttpRequest) -> Iterator[None]:
    """Note an exception of the view: code around it may turn that into a response, even the
    cancellation by a deadline."""
    try:
        yield
    except BaseException as error:
        opened = open_order(http)
        if opened is not None:
            opened.error = error
        raise


async def _called(
    http: HttpRequest, view: View, exempt: Exempt | None, call: Callable[[], Any]
) -> Any:
    """Call the view in the transactions of ATOMIC_REQUESTS that are not open yet.

    Django's handler does not open them: it would COMMIT if a framework inside it turned an
    exception into a response.
    """
    if exempt is None:
        return await value(call())
    if has_lock_below(view, http):
        return call()  # it opens them under its own lock
    aliases = exempt.atomic_requests()
    opened = open_order(http)
    if opened is None:
        blocks = [alias for alias in aliases if not user_blocks(connections[alias])]
    else:
        blocks = opened.besides(aliases)
    with atomic_blocks(http, blocks, durable=False):
        answer = call()
        return answer if opened is None else opened.last_look(answer, blocks)


async def _served(
    http: HttpRequest, exempt: Exempt | None, doing: Callable[[Runner], Coroutine[Any, Any, Any]]
) -> Any:
    """Do this with the runner that lasts as long as the order. Under WSGI, an async view's loop
    ends with the view, but the order does not: there, use the thread."""
    if exempt is not None:
        return await doing(THREAD)
    if getattr(http, MIDDLEWARE_RUNNER) is LOOP:
        return await doing(LOOP)
    return await in_thread(lambda: result_of(doing(THREAD)))


def _visit(request: Any, view: View, options: ViewOptions) -> Visit:
    http = http_request(request)
    if not hasattr(http, MIDDLEWARE_RUNNER):
        raise ConfigurationError(
            "@idempotent needs 'lockkit_django.middleware.IdempotentOrderMiddleware' in MIDDLEWARE"
        )
    if getattr(http, "lease", None) is not None:
        raise ConfigurationError(
            "an order inside lock_view would commit after that lock is released: "
            "put @idempotent, or the method's @lock_view, the other way round"
        )
    if open_order(http) is not None:
        raise ConfigurationError(
            "an order is open already: use @idempotent once per request, and functools.wraps in "
            "the decorators above it, which hide it from the middleware otherwise"
        )
    return Visit(http, view, options, by_drf=request is not http)
