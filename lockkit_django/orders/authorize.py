"""Who sends a request, and whether he may still see what was answered before.

A stored response is given without calling the view, so the checks that the view makes itself must
be made first. What cannot be made outside the view is never assumed to have passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from asgiref.sync import async_to_sync, iscoroutinefunction
from django.apps import apps
from django.http import HttpRequest, HttpResponseBase
from django.utils.module_loading import import_string

from lockkit_django.handlers import handlers, ninja_operation
from lockkit_django.orders.facts import identity_of

if TYPE_CHECKING:
    from lockkit.idempotency import Identity, OrderSettings

__all__ = ["RefusedError", "identity_for", "may_replay"]

DECORATORS = "django.contrib.auth.decorators"

View = Callable[..., Any]


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
        return bool(import_string(settings.authorize_replay)(request))
    if checked:
        return True
    tests = [*_method_tests(request, view), *(() if _is_drf(view) else _tests(request, view))]
    if any(test is None for test in tests):
        return None
    return all(test() for test in tests if test is not None)


def _is_drf(view: View) -> bool:
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
    """The checks of a view as questions; None for one that only the view can make."""
    yield from _decorator_tests(request, view)
    cls = getattr(view, "view_class", None)
    if cls is not None and apps.is_installed("django.contrib.auth"):
        yield from _mixin_tests(request, view, cls)


def _method_tests(request: HttpRequest, view: Any) -> Iterator[None]:
    """None if a function below the callback has such a decorator: it is asked inside the view."""
    if any(hasattr(each, "login_url") for each in handlers(view, request.method)):
        yield None


def _decorator_tests(request: HttpRequest, view: Any) -> Iterator[Callable[[], bool] | None]:
    """``user_passes_test`` and its kin mark their views with ``login_url``."""
    found = False
    layer = view
    while layer is not None:
        test = _test_func(layer)
        if test is not None:
            found = True
            yield _asking(test, request)
        layer = getattr(layer, "__wrapped__", None)
    if not found and hasattr(view, "login_url"):
        yield None


def _test_func(layer: Any) -> Callable[[Any], Any] | None:
    """The test inside a decorated view: Django does not show it in any other way."""
    if getattr(layer, "__globals__", {}).get("__name__") != DECORATORS:
        return None
    cells = dict(zip(layer.__code__.co_freevars, layer.__closure__ or (), strict=False))
    cell = cells.get("test_func")
    return None if cell is None else cell.cell_contents


def _asking(test: Callable[[Any], Any], request: HttpRequest) -> Callable[[], bool]:
    ask = async_to_sync(test) if iscoroutinefunction(test) else test
    return lambda: bool(ask(request.user))


def _mixin_tests(
    request: HttpRequest, view: Any, cls: type[Any]
) -> Iterator[Callable[[], bool] | None]:
    from django.contrib.auth import mixins  # has models: only in a project with users

    if not issubclass(cls, mixins.AccessMixin):
        return
    match = request.resolver_match
    assert match is not None
    instance: Any = cls(**view.view_initkwargs)
    instance.setup(request, *match.args, **match.kwargs)
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
