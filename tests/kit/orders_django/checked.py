"""Views with checks around them that lockkit knows, and with others that it cannot know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, update_wrapper, wraps
from typing import Any

import django
from django.contrib.auth.decorators import login_required, user_passes_test
from django.contrib.auth.mixins import LoginRequiredMixin, UserPassesTestMixin
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import cache_control, cache_page, never_cache
from django.views.decorators.clickjacking import xframe_options_deny
from django.views.decorators.common import no_append_slash
from django.views.decorators.csrf import csrf_exempt, csrf_protect, ensure_csrf_cookie
from django.views.decorators.debug import sensitive_post_parameters, sensitive_variables
from django.views.decorators.http import condition, require_http_methods, require_POST
from django.views.decorators.vary import vary_on_cookie
from rest_framework.decorators import api_view, authentication_classes, permission_classes
from rest_framework.exceptions import PermissionDenied as DRFDenied
from rest_framework.permissions import BasePermission
from rest_framework.response import Response
from rest_framework.views import APIView
from transparent import Measured, Transparent

from lockkit_django import lock_view
from lockkit_django.orders import IdempotentMixin, idempotent
from orders_django.views import sell

revoked: set[str] = set()
"""Non-empty: nobody may do anything any more."""


def may(user: Any = None) -> bool:
    return not revoked


def made(request: Any) -> HttpResponse:
    return HttpResponse(f"secret {sell('checked')}", status=201)


def staff_only(view: Callable[..., Any]) -> Callable[..., Any]:
    """As projects write them."""

    @wraps(view)
    def inner(request: Any, *args: Any, **kwargs: Any) -> Any:
        if not may():
            raise PermissionDenied
        return view(request, *args, **kwargs)

    return inner


def unseen(view: Callable[..., Any]) -> Callable[..., Any]:
    """The same without ``functools.wraps``."""

    def inner(request: Any, *args: Any, **kwargs: Any) -> Any:
        if not may():
            raise PermissionDenied
        return view(request, *args, **kwargs)

    return inner


def by_default(view: Callable[..., Any]) -> Callable[..., Any]:
    """The same, with the view as a default."""

    def inner(request: Any, view: Callable[..., Any] = view) -> Any:
        if not may():
            raise PermissionDenied
        return view(request)

    return inner


def transparent(view: Callable[..., Any]) -> Any:
    """The same as a library such as wrapt makes it."""
    return Transparent(view, refuse)


def refuse() -> None:
    if not may():
        raise PermissionDenied


@dataclass
class Require:
    """A decorator that is a class, and returns a method."""

    view: Callable[..., Any]

    def run(self, request: Any) -> Any:
        refuse()
        return self.view(request)


def asked_first(view: Callable[..., Any], request: Any, *args: Any) -> Any:
    if not may():
        raise PermissionDenied
    return view(request, *args)


@dataclass
class WithoutHash:
    """A view that is an object, and equal to others."""

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return made(request)


class Made(View):
    raise_exception = True  # for the mixins

    def post(self, request: HttpRequest) -> HttpResponse:
        return made(request)


class StaffMixin(LoginRequiredMixin):
    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        return super().dispatch(request, *args, **kwargs) if may() else self.handle_no_permission()


class WithStaffMixin(StaffMixin, Made):
    pass


class OwnDispatch(Made):
    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        if not may():
            raise PermissionDenied
        return super().dispatch(request, *args, **kwargs)


@method_decorator(staff_only, name="dispatch")
class DecoratedDispatch(Made):
    pass


@method_decorator([never_cache, staff_only], name="post")
class DecoratedPost(Made):
    pass


class ChecksInItsBase(Made):
    def post(self, request: HttpRequest) -> HttpResponse:
        if not may():
            raise PermissionDenied
        return super().post(request)


class ProjectBase(ChecksInItsBase):
    def post(self, request: HttpRequest) -> HttpResponse:
        return super().post(request)


class Setup(View):
    def post(self, request: HttpRequest) -> HttpResponse:
        return made(request)

    def setup(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        super().setup(request, *args, **kwargs)
        if not may():
            raise PermissionDenied


@method_decorator(idempotent, name="dispatch")
class ChecksInsideDispatch(StaffMixin, Made):
    pass


@method_decorator(idempotent, name="dispatch")
class MixinInsideDispatch(LoginRequiredMixin, Made):
    pass


@method_decorator([idempotent, transparent], name="dispatch")
class ProxyInsideDispatch(View):
    def post(self, request: HttpRequest) -> HttpResponse:
        return made(request)


class Plain(View):
    def post(self, request: HttpRequest) -> HttpResponse:
        return made(request)


class OnlyItsDispatch(View):
    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        if not may():
            raise PermissionDenied
        return super().dispatch(request, *args, **kwargs)

    def post(self, request: HttpRequest) -> HttpResponse:
        return made(request)


class OnlyItsInitial(APIView):
    authentication_classes = ()
    permission_classes: Any = ()

    def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if not may():
            raise DRFDenied

    def post(self, request: Any) -> Response:
        return Response({"secret": sell("checked")}, status=201)


class OnlyItsMethod(View):
    @method_decorator(staff_only)
    def post(self, request: HttpRequest) -> HttpResponse:
        return made(request)


class Permitted(UserPassesTestMixin, View):
    raise_exception = True

    def test_func(self) -> bool:
        return may()

    def post(self, request: HttpRequest) -> HttpResponse:
        return made(request)


class Open(APIView):
    authentication_classes = ()
    permission_classes: Any = ()

    def post(self, request: Any) -> Response:
        return Response({"secret": sell("checked")}, status=201)


class PermittedApi(UserPassesTestMixin, APIView):
    authentication_classes = ()
    permission_classes: Any = ()
    raise_exception = True

    def test_func(self) -> bool:
        return may()

    def post(self, request: Any) -> Response:
        return Response({"secret": sell("checked")}, status=201)


class OwnInitial(Open):
    def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if not may():
            raise DRFDenied


class OwnInitialMixed(IdempotentMixin, OwnInitial):
    pass


class OwnCheck(APIView):
    authentication_classes = ()
    permission_classes: Any = ()

    def post(self, request: Any) -> Response:
        return Response({"secret": sell("checked")}, status=201)

    def check_permissions(self, request: Any) -> None:
        super().check_permissions(request)
        if not may():
            raise DRFDenied


class MayNow(BasePermission):
    def has_permission(self, request: Any, view: Any) -> bool:
        return may()


@method_decorator(idempotent, name="dispatch")
class ApiInsideDispatch(Open):
    permission_classes: Any = (MayNow,)


@user_passes_test(may)
@api_view(["POST"])
@authentication_classes([])
@permission_classes([])
def above_api(request: Any) -> Response:
    return Response({"secret": sell("checked")}, status=201)


@api_view(["POST"])
@authentication_classes([])
@permission_classes([])
@staff_only
def below_api(request: Any) -> Response:
    return Response({"secret": sell("checked")}, status=201)


def _harmless() -> dict[str, Callable[..., Any]]:
    """Each of Django's decorators that refuses nobody, around a view of its own."""
    decorators: dict[str, Any] = {
        "require-post": require_POST,
        "require-methods": require_http_methods(["POST", "GET"]),
        "condition": condition(),
        "never-cache": never_cache,
        "cache-control": cache_control(private=True),
        "vary": vary_on_cookie,
        "frames": xframe_options_deny,
        "slash": no_append_slash,
        "csrf-exempt": csrf_exempt,
        "sensitive": sensitive_post_parameters("card"),
        "sensitive-variables": sensitive_variables(),
        "atomic": transaction.atomic,
        "non-atomic": transaction.non_atomic_requests,
        "locked": lock_view("stock:harmless"),
        "login": login_required,
    }
    if django.VERSION >= (6,):
        from django.views.decorators.csp import csp_override

        decorators["csp"] = csp_override({})

    def view() -> Callable[..., Any]:
        def each(request: HttpRequest) -> HttpResponse:
            return made(request)

        return each

    found = {name: decorate(view()) for name, decorate in decorators.items()}
    found["all"] = view()
    for decorate in decorators.values():
        found["all"] = decorate(found["all"])
    return {f"harmless-{name}": each for name, each in found.items()}


class ChecksGet(View):
    """GET is never an order."""

    @method_decorator(staff_only)
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    def post(self, request: HttpRequest) -> HttpResponse:
        return made(request)


HARMLESS = {
    **_harmless(),
    "harmless-class": csrf_exempt(never_cache(Plain.as_view())),
    "harmless-agent": Measured(made),
    "harmless-agents": Measured(
        csrf_exempt(Measured(Plain.as_view())), by="newrelic.hooks.framework_django"
    ),
    "harmless-check-of-get": idempotent(ChecksGet.as_view()),
}


@method_decorator(never_cache, name="dispatch")
class OnDispatch(View):
    def post(self, request: HttpRequest) -> HttpResponse:
        return made(request)


UNLISTED = {
    "unlisted-cache-page": cache_page(60)(made),
    "unlisted-csrf-protect": csrf_protect(made),
    "unlisted-csrf-cookie": ensure_csrf_cookie(made),
    "unlisted-agent": Measured(made, by="newrelic.common.object_wrapper"),
    "unlisted-partial": partial(made),
    "unlisted-without-a-hash": WithoutHash(),
    "unlisted-dispatch": OnDispatch.as_view(),
    "unlisted-base": type("Made2", (Made,), {}).as_view(),
}
"""They refuse nobody, and nothing that lockkit looks at says so."""

UNKNOWN = {
    "custom": staff_only(made),
    "custom-below": never_cache(staff_only(csrf_exempt(made))),
    "custom-unseen": unseen(made),
    "custom-by-default": by_default(made),
    "custom-partial": update_wrapper(partial(asked_first, made), made),
    "custom-proxy": transparent(made),
    "custom-proxy-of-django": transparent(require_POST(csrf_exempt(made))),
    "custom-proxy-of-login": transparent(login_required(made)),
    "custom-proxy-below-idempotent": idempotent(transparent(never_cache(made))),
    "proxy-inside-dispatch": ProxyInsideDispatch.as_view(),
    "custom-proxy-of-an-agents": transparent(Measured(made)),
    "custom-below-an-agents": Measured(staff_only(made)),
    "custom-method": Require(made).run,
    "custom-method-below-idempotent": idempotent(Require(made).run),
    "own-setup": Setup.as_view(),
    "only-its-dispatch": OnlyItsDispatch.as_view(),
    "only-its-initial": OnlyItsInitial.as_view(),
    "only-its-method": OnlyItsMethod.as_view(),
    "around-plain-class": staff_only(Plain.as_view()),
    "in-its-base": ProjectBase.as_view(),
    "custom-around-class": staff_only(Made.as_view()),
    "custom-below-idempotent": idempotent(staff_only(made)),
    "staff-mixin": WithStaffMixin.as_view(),
    "own-dispatch": OwnDispatch.as_view(),
    "decorated-dispatch": DecoratedDispatch.as_view(),
    "decorated-post": DecoratedPost.as_view(),
    "checks-inside-dispatch": ChecksInsideDispatch.as_view(),
    "checks-inside-callback": idempotent(OwnDispatch.as_view()),
    "own-initial": OwnInitial.as_view(),
    "below-api": below_api,
    "api-inside-dispatch": ApiInsideDispatch.as_view(),
}
"""They refuse a new order with 403. A repeat gets 409: nobody knows what the check would say."""

ASKED = {
    "above-api": (above_api, 403),
    "above-function": (user_passes_test(may)(made), 403),
    "around-api": (user_passes_test(may)(Open.as_view()), 403),
    "around-class": (user_passes_test(may)(Plain.as_view()), 403),
    "mixin": (Permitted.as_view(), 403),
    "mixin-of-api": (PermittedApi.as_view(), 403),
    "own-initial-mixed": (OwnInitialMixed.as_view(), 403),
    "own-check": (OwnCheck.as_view(), 403),
    "above-idempotent": (staff_only(idempotent(made)), 403),
}

urlpatterns = [
    *(path(f"orders/{kind}", view) for kind, view in (HARMLESS | UNLISTED | UNKNOWN).items()),
    *(path(f"orders/{kind}", view) for kind, (view, _) in ASKED.items()),
    path("orders/mixin-inside", MixinInsideDispatch.as_view()),
]
