"""Who sends a request, and whether it may still see what was answered before.

A stored response is given without calling the view, so the checks that the view makes itself must
be made first. What cannot be made outside the view is never assumed to have passed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from asgiref.sync import async_to_sync, iscoroutinefunction
from django.apps import apps
from django.http import HttpRequest, HttpResponseBase
from django.utils.module_loading import import_string

from lockkit.model.log import log
from lockkit_django.handlers import handlers, ninja_operation
from lockkit_django.orders.facts import identity_of
from lockkit_django.orders.layers import (
    is_callback,
    is_harmless,
    is_the_frameworks,
    login_test,
    name_of,
    unwrapped,
)

if TYPE_CHECKING:
    from lockkit.orders import Identity, OrderSettings

__all__ = ["RefusedError", "identity_for", "may_replay"]

View = Callable[..., Any]

_told: set[tuple[str, str]] = set()


class RefusedError(Exception):
    """The view would refuse this request: ``response`` is its answer."""

    def __init__(self, response: HttpResponseBase) -> None:
        super().__init__(response.status_code)
        self.response = response


def identity_for(
    request: HttpRequest, view: View, settings: OrderSettings, *, checked: bool
) -> Identity:
    """Whose order it is. DRF and Ninja authenticate inside their views: here it is done before.

    Raises RefusedError if authentication, or a permission of DRF's class, refuses.
    """
    operation = ninja_operation(view, request.method)
    if checked or not (operation or _is_drf(view)):
        return identity_of(request, settings)
    with _own_user(request):
        if operation is None:
            _check_as_drf(request, view)
        else:
            _check_as_ninja(request, operation)
        return identity_of(request, settings)


def may_replay(
    request: HttpRequest, view: View, settings: OrderSettings, *, checked: bool
) -> bool | None:
    """Whether the view's own checks would pass now; None: that cannot be told from outside.

    AUTHORIZE_REPLAY, if it is set, decides alone. Exceptions of the checks are raised: they are
    what the view would have raised.
    """
    if settings.authorize_replay is not None:
        return _authorized(settings.authorize_replay, request)
    tests = list(_tests_below(request, view) if checked else _tests(request, view))
    if any(test is None for test in tests):
        return None
    return all(test() for test in tests if test is not None)


def _authorized(path: str, request: HttpRequest) -> bool:
    """What AUTHORIZE_REPLAY says, a function or anything whose answer is to be awaited."""
    answer = import_string(path)(request)
    return bool(async_to_sync(_awaited)(answer) if isawaitable(answer) else answer)


async def _awaited(answer: Awaitable[object]) -> object:
    return await answer


def _is_drf(view: object) -> bool:
    return hasattr(getattr(view, "cls", None), "initialize_request")


def _check_as_drf(request: HttpRequest, view: Any) -> None:
    """What ``APIView.initial`` does, but for throttling, which counts."""
    match = request.resolver_match
    assert match is not None
    instance = view.cls(**getattr(view, "initkwargs", {}))
    for method, action in (getattr(view, "actions", None) or {}).items():
        setattr(instance, method, getattr(instance, action))
    instance.action_map = getattr(view, "actions", None) or {}
    instance.args, instance.kwargs = match.args, match.kwargs
    drf = instance.request = instance.initialize_request(request, *match.args, **match.kwargs)
    instance.headers = instance.default_response_headers
    instance.format_kwarg = instance.get_format_suffix(**match.kwargs)
    try:
        drf.version, drf.versioning_scheme = instance.determine_version(
            drf, *match.args, **match.kwargs
        )
        instance.perform_authentication(drf)
        instance.check_permissions(drf)
    except Exception as error:  # noqa: BLE001  the view raises again what it does not know
        response = instance.handle_exception(error)
        raise RefusedError(instance.finalize_response(drf, response)) from None


def _check_as_ninja(request: HttpRequest, operation: Any) -> None:
    """What its ``run`` does first, but for throttling, which counts."""
    if not operation.auth_callbacks:
        return
    if operation.csrf_exempt:
        request._ninja_csrf_exempt = True  # type: ignore[attr-defined]
    authenticate = operation._run_authentication
    ask = async_to_sync(authenticate) if iscoroutinefunction(authenticate) else authenticate
    response = ask(request)
    if response is not None:
        raise RefusedError(response)


@contextmanager
def _own_user(request: HttpRequest) -> Iterator[None]:
    """Take back what was set: DRF's SessionAuthentication would believe that user in the view."""
    before: dict[str, Any] = {
        key: request.__dict__[key] for key in ("user", "auth") if key in request.__dict__
    }
    try:
        yield
    finally:
        for key in ("user", "auth"):
            request.__dict__.pop(key, None)
        request.__dict__.update(before)


def _tests(request: HttpRequest, view: Any) -> Iterator[Callable[[], bool] | None]:
    """The checks around and in a view as questions; None for one that only the view can make."""
    found, _ = unwrapped(view)
    tests = [login_test(layer) for layer in found]
    for layer, test in zip(found, tests, strict=True):
        if test is not None:
            yield _asking(test, request)
        else:
            yield from _unknown(request, layer)
    if not any(tests) and hasattr(view, "login_url"):
        yield None
    for handler in handlers(view, request.method):
        yield from _handler_tests(request, handler)
    yield from _class_tests(request, view)


def _tests_below(request: HttpRequest, view: Any) -> Iterator[Callable[[], bool] | None]:
    """The same for a function below ``@idempotent``, whose order is open to whoever got there.

    Of a class that it is around as a whole, ``dispatch`` or the callback, all checks are below.
    """
    yield from _handler_tests(request, view)
    _, function = unwrapped(view)
    match = request.resolver_match
    callback = function if is_callback(function) else getattr(match, "func", None)
    if callback is not function and getattr(function, "__name__", "") != "dispatch":
        return
    if _is_drf(callback):
        _tell(request, "the authentication of DRF, which comes after @idempotent here,")
        yield None
    for handler in handlers(callback, request.method):
        yield from _handler_tests(request, handler)
    yield from _class_tests(request, callback)


def _handler_tests(request: HttpRequest, handler: Any) -> Iterator[None]:
    """A login decorator on a method cannot be asked: the request may be another one there."""
    found, function = unwrapped(handler)
    for layer in found:
        yield from _unknown(request, layer)
    if function is handler and hasattr(handler, "login_url"):
        yield None


def _unknown(request: HttpRequest, layer: Any) -> Iterator[None]:
    if not is_harmless(layer, request):
        _tell(request, name_of(layer))
        yield None


def _class_tests(request: HttpRequest, view: Any) -> Iterator[Callable[[], bool] | None]:
    cls = getattr(view, "cls", None) or getattr(view, "view_class", None)
    if cls is None:
        return
    for name in ("dispatch", "initial") if _is_drf(view) else ("dispatch",):
        if not is_the_frameworks(cls, name, request):
            _tell(request, f"{cls.__qualname__}.{name}")
            yield None
    if not _is_drf(view) and apps.is_installed("django.contrib.auth"):
        yield from _mixin_tests(request, view, cls)
    if not is_the_frameworks(cls, "setup", request):
        yield lambda: _instance(request, view, cls) is not None  # or it raises


def _asking(test: Callable[[Any], Any], request: HttpRequest) -> Callable[[], bool]:
    ask = async_to_sync(test) if iscoroutinefunction(test) else test
    return lambda: bool(ask(request.user))


def _instance(request: HttpRequest, view: Any, cls: type[Any]) -> Any:
    """An object of the view's class, as ``as_view`` makes it for a request."""
    match = request.resolver_match
    assert match is not None
    instance = cls(**getattr(view, "view_initkwargs", None) or getattr(view, "initkwargs", {}))
    instance.setup(request, *match.args, **match.kwargs)
    return instance


def _tell(request: HttpRequest, check: str) -> None:
    """Once per route: who wrote it should know why duplicates are not answered."""
    match = request.resolver_match
    route = "" if match is None else match.route
    if (route, check) in _told:
        return
    _told.add((route, check))
    log.warning(
        "orders of the route %r are not repeated: %s may be a check that a repeated answer would "
        "pass by. Put @idempotent below it, or set AUTHORIZE_REPLAY",
        route,
        check,
    )


def _mixin_tests(
    request: HttpRequest, view: Any, cls: type[Any]
) -> Iterator[Callable[[], bool] | None]:
    from django.contrib.auth import mixins  # has models: only in a project with users

    if not issubclass(cls, mixins.AccessMixin):
        return
    instance = _instance(request, view, cls)
    if issubclass(cls, mixins.LoginRequiredMixin):
        yield lambda: bool(request.user.is_authenticated)
    if issubclass(cls, mixins.PermissionRequiredMixin):
        yield instance.has_permission
    if issubclass(cls, mixins.UserPassesTestMixin):
        yield lambda: bool(instance.get_test_func()())
    known = (
        mixins.LoginRequiredMixin,
        mixins.PermissionRequiredMixin,
        mixins.UserPassesTestMixin,
    )
    if not issubclass(cls, known):
        yield None
