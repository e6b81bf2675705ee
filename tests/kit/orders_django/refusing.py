"""Views that count a guess and then refuse, in each way that a view has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, ClassVar

from django.conf import settings
from django.contrib.auth.decorators import (
    login_required,
    permission_required,
    user_passes_test,
)
from django.contrib.auth.mixins import LoginRequiredMixin
from django.core.exceptions import PermissionDenied
from django.db import IntegrityError, connection, transaction
from django.db.transaction import non_atomic_requests
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.template import engines
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from django_project.shop.models import Sale
from ninja import NinjaAPI
from ninja.errors import HttpError
from rest_framework.decorators import api_view, authentication_classes, permission_classes
from rest_framework.exceptions import APIException, Throttled
from rest_framework.permissions import IsAuthenticated
from rest_framework.response import Response
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView, exception_handler, set_rollback

from lockkit_django import lock_view
from lockkit_django.orders import IdempotentMixin, idempotent

allowed: list[bool] = []


def guess() -> None:
    """Count it, and undo what belongs to a block of the view's own that fails."""
    Sale.objects.create(sku="guess")
    with suppress(LookupError), transaction.atomic():
        Sale.objects.create(sku="undone")
        raise LookupError


def status(request: Any) -> int:
    return int(request.GET.get("status", "403"))


def returns(request: HttpRequest) -> HttpResponse:
    guess()
    return HttpResponse(status=status(request))


def renders(request: HttpRequest) -> HttpResponseBase:
    guess()
    template = engines["django"].from_string("refused")
    return TemplateResponse(request, template, status=status(request))


def raises(request: HttpRequest) -> HttpResponse:
    guess()
    raise PermissionDenied


def to_login(request: HttpRequest) -> HttpResponse:
    guess()
    return HttpResponseRedirect(f"{settings.LOGIN_URL}?wrong=1")


def redirects(request: HttpRequest) -> HttpResponse:
    guess()
    return HttpResponseRedirect(request.GET["to"])


class OfStaff(LoginRequiredMixin, View):
    login_url = "/staff/login/"

    def post(self, request: HttpRequest) -> HttpResponse:
        guess()
        return HttpResponse(status=201)


class OfUsers(LoginRequiredMixin, View):
    post = OfStaff.post


class OfStaffByMethod(OfUsers):
    def get_login_url(self) -> str:
        return "/staff/login/"


class Goes(OfUsers):
    """Its login page is known only within ``dispatch``, and its ``setup`` passes once."""

    set_up: ClassVar[list[str]] = []

    def setup(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        super().setup(request, *args, **kwargs)
        if self.set_up:
            raise Http404
        self.set_up.append("once")

    def get_login_url(self) -> str:
        raise AttributeError

    def handle_no_permission(self) -> HttpResponseRedirect:
        return HttpResponseRedirect("/thanks")


class OfStaffInside(View):
    post = method_decorator(permission_required("auth.nothing", login_url="/staff/login/"))(
        OfStaff.post
    )


@login_required(login_url="/staff/login/")
@permission_required("auth.nothing", login_url="/elsewhere/")
def of_staff_above(request: HttpRequest) -> HttpResponse:
    raise AssertionError


@permission_required("auth.nothing", login_url="/staff/login/")
@login_required
def of_staff_above_all(request: HttpRequest) -> HttpResponse:
    raise AssertionError


def sent_to_staff(request: HttpRequest, status: int) -> HttpResponse:
    return HttpResponse(status=status, headers={"Location": "/staff/login/?next=/orders/"})


def sent_nowhere(request: HttpRequest) -> HttpResponse:
    guess()
    return HttpResponse(status=302, headers={"Location": "http://["})


@user_passes_test(lambda user: False, login_url="/", redirect_field_name="back")
def of_nobody(request: HttpRequest) -> HttpResponse:
    return HttpResponse(status=201)


@user_passes_test(lambda user: False, login_url="/", redirect_field_name=None)
def of_nobody_at_all(request: HttpRequest) -> HttpResponse:
    """The login page is not told where to go."""
    return HttpResponse(status=201)


def breaks(request: HttpRequest) -> HttpResponse:
    """A middleware turns its exception into a refusal."""
    guess()
    raise KeyError


def clashes(request: HttpRequest) -> HttpResponse:
    """Its transaction cannot commit any more, on any database."""
    guess()
    try:
        Sale.objects.create(pk=Sale.objects.latest("pk").pk)
    except IntegrityError:
        return HttpResponse(status=409)
    raise AssertionError


def tears(request: HttpRequest) -> HttpResponse:
    """Leaves a block that has no savepoint of its own."""
    guess()
    with transaction.atomic(savepoint=False):
        raise PermissionDenied


async def coroutine(request: HttpRequest) -> HttpResponse:
    await Sale.objects.acreate(sku="guess")
    raise PermissionDenied


@lock_view("guesses")
def locked(request: HttpRequest) -> HttpResponse:
    return raises(request)


class Api(APIView):
    authentication_classes = ()
    permission_classes = ()
    error: type[Exception] = Throttled

    def post(self, request: Any) -> Response:
        guess()
        raise self.error


class ApiClosed(Api):
    permission_classes = (IsAuthenticated,)  # type: ignore[assignment]


counted: list[str] = []


class Counting(BaseThrottle):
    def allow_request(self, request: Any, view: Any) -> bool:
        counted.append(request.path)
        return True


class ApiCounted(Api):
    throttle_classes = (Counting,)


class ApiTears(Api):
    def post(self, request: Any) -> Response:
        guess()
        with transaction.atomic(savepoint=False):
            raise Throttled


class ApiAsks(Api):
    def post(self, request: Any) -> Response:
        guess()
        if request.headers.get("Idempotency-Key"):  # else there is no transaction
            transaction.set_rollback(True)
        raise Throttled


class ApiRecovers(Api):
    """It recovers from an error of the database, as a view should."""

    def post(self, request: Any) -> Response:
        guess()
        with suppress(IntegrityError), transaction.atomic():
            Sale.objects.create(pk=Sale.objects.latest("pk").pk)
        raise Throttled


class ApiMarksTwice(Api):
    """Its exception handler marks, and so does DRF's below it."""

    def get_exception_handler(self) -> Callable[..., Response | None]:
        def handler(error: Exception, context: Any) -> Response | None:
            set_rollback()
            return exception_handler(error, context)

        return handler


class ApiWrapped(Api):
    """As most projects have it: the body has another shape."""

    def get_exception_handler(self) -> Any:
        def wrapped(error: Exception, context: Any) -> Response | None:
            response = exception_handler(error, context)
            if isinstance(error, LookupError):
                return Response({"error": {}}, status=409)
            if response is not None:
                response.data = {"error": response.data}
            return response

        return wrapped


class Conflict(APIException):
    status_code = 409


def _of_method(*decorators: Callable[..., Any], base: type[Api] = Api) -> Any:
    """A view of DRF's whose method has these decorators, the innermost first."""
    post = base.post
    for decorator in decorators:
        post = decorator(post)
    return type(base.__name__, (base,), {"post": post}).as_view(error=Conflict)


def _of_function(*decorators: Callable[..., Any]) -> Any:
    """The same below ``api_view``."""

    def refuse(request: Any) -> Response:
        guess()
        raise Conflict

    for decorator in (*decorators, permission_classes([]), authentication_classes([])):
        refuse = decorator(refuse)
    return api_view(["POST"])(refuse)


class ApiMarks(Api):
    """Its exception handler asks Django for the rollback, and then DRF's does it again."""

    def get_exception_handler(self) -> Callable[..., Response | None]:
        def handler(error: Exception, context: Any) -> Response | None:
            if connection.settings_dict["ATOMIC_REQUESTS"]:
                transaction.set_rollback(True)
            return exception_handler(error, context)

        return handler


class Mixed(IdempotentMixin, Api):
    pass


class MixedWrapped(IdempotentMixin, ApiWrapped):
    pass


api = NinjaAPI(urls_namespace="refusing")


@api.post("/raises")
def ninja_raises(request: HttpRequest) -> Any:
    guess()
    raise HttpError(429, "slowly")


@api.post("/inside")
@idempotent
def ninja_inside(request: HttpRequest) -> Any:
    return ninja_raises(request)


def _both(view: Callable[..., Any], name: str) -> Iterator[tuple[str, Any]]:
    yield name, view
    yield f"{name}-inside", idempotent(view)


VIEWS: dict[str, Any] = {
    **dict(_both(returns, "returns")),
    **dict(_both(renders, "renders")),
    **dict(_both(raises, "raises")),
    **dict(_both(to_login, "to-login")),
    **dict(_both(breaks, "breaks")),
    **dict(_both(coroutine, "async")),
    **dict(_both(locked, "locked")),
    "clashes": clashes,
    "tears": tears,
    "api": Api.as_view(),
    "api-denied": Api.as_view(error=PermissionDenied),
    "api-wrapped": ApiWrapped.as_view(),
    "api-method": _of_method(),
    "api-method-inside": _of_method(idempotent),
    "api-method-guarded": _of_method(lock_view("guesses")),
    "api-method-guarded-inside": _of_method(lock_view("guesses"), idempotent),
    "api-function": _of_function(),
    "api-function-inside": _of_function(idempotent),
    "api-function-guarded": _of_function(lock_view("guesses")),
    "api-function-guarded-inside": _of_function(lock_view("guesses"), idempotent),
    "api-marks": _of_method(base=ApiMarks),
    "api-marks-inside": _of_method(idempotent, base=ApiMarks),
    "api-marks-guarded": _of_method(lock_view("guesses"), base=ApiMarks),
    "api-mixed": Mixed.as_view(),
    "api-mixed-denied": Mixed.as_view(error=PermissionDenied),
    "api-mixed-wrapped": MixedWrapped.as_view(),
    "api-mixed-breaks": MixedWrapped.as_view(error=LookupError),
    "api-broken": Api.as_view(error=APIException),
}
EXEMPT: dict[str, Any] = {
    "api": Api.as_view(),
    "api-mixed": Mixed.as_view(),
    "api-wrapped": ApiWrapped.as_view(),
    "api-recovers": ApiRecovers.as_view(),
    "api-twice": ApiMarksTwice.as_view(),
}
"""What a project takes out of ATOMIC_REQUESTS, so that guesses count."""

UNDONE: dict[str, Any] = {
    "api-tears": ApiTears.as_view(),
    "api-tears-mixed": type("Tears", (IdempotentMixin, ApiTears), {}).as_view(),
    "api-asks": ApiAsks.as_view(),
    "api-tears-twice": type("TearsTwice", (ApiMarksTwice, ApiTears), {}).as_view(),
    "api-asks-twice": type("AsksTwice", (ApiMarksTwice, ApiAsks), {}).as_view(),
}
"""Such views that leave nothing to be saved."""

urlpatterns = [
    *(
        path(f"orders/exempt/{name}", non_atomic_requests(view))
        for name, view in {**EXEMPT, **UNDONE}.items()
    ),
    *(path(f"orders/{name}", view) for name, view in VIEWS.items()),
    path("orders/ninja/", api.urls),
    path("orders/redirects", redirects),
    path("orders/api-closed", ApiClosed.as_view()),
    path("orders/api-counted", ApiCounted.as_view()),
    path("orders/of-staff", OfStaff.as_view()),
    path("orders/of-staff-as", OfStaffByMethod.as_view()),
    path("orders/of-staff-by", OfUsers.as_view(login_url="/staff/login/")),
    path("orders/goes", Goes.as_view()),
    path("orders/of-staff-inside", OfStaffInside.as_view()),
    path("orders/of-staff-above", of_staff_above),
    path("orders/of-staff-above-all", of_staff_above_all),
    path("orders/sent-to-staff/<int:status>", sent_to_staff),
    path("orders/sent-nowhere", sent_nowhere),
    path("orders/of-nobody", of_nobody),
    path("orders/of-nobody-at-all", of_nobody_at_all),
]
