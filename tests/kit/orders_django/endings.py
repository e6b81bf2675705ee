"""Views whose orders end in ways that the answer says little about."""

from __future__ import annotations

from typing import Any, ClassVar

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.models import Permission
from django.core.signals import got_request_exception
from django.db import OperationalError, transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import path
from rest_framework.exceptions import APIException
from rest_framework.response import Response
from rest_framework.views import APIView, exception_handler

from lockkit.model.errors import LeaseLost
from lockkit_django import lock_view
from lockkit_django.models import OrderRecord
from lockkit_django.orders import IdempotentMixin, idempotent
from orders_django.views import Broken, sell, template

payments: list[int] = []
refusing: list[bool] = []


def answers_all(error: Exception, context: Any) -> Response:
    """As many projects have it in EXCEPTION_HANDLER."""
    response = exception_handler(error, context)
    return response if response is not None else Response({"error": "internal"}, status=500)


class Pays(APIView):
    authentication_classes = ()
    permission_classes = ()
    error: type[Exception] = TimeoutError

    def post(self, request: Any) -> Response:
        payments.append(1)
        raise self.error


class Handled(Pays):
    def get_exception_handler(self) -> Any:
        return answers_all


class HandledInClass(Pays):
    def handle_exception(self, exc: Exception) -> Response:
        response = answers_all(exc, {})
        response.exception = True
        return response


class Says(Handled):
    """A response that the view returns is its own word."""

    def post(self, request: Any) -> Response:
        payments.append(1)
        return Response({}, status=500)


class Thanks:
    """A middleware that calls each failure a success, or sends it elsewhere."""

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse:
        status = int(request.GET.get("status", "201"))
        return HttpResponse("thanks", status=status, headers={"Location": "/basket"})


class Decorates:
    """A middleware that fails at a view's response, as Django does at what is not a response."""

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_template_response(self, request: HttpRequest, response: Any) -> HttpResponse:
        raise Broken


def nothing(request: HttpRequest) -> None:
    """Has forgotten its answer."""
    sell("nothing")


@idempotent
def nothing_inside(request: HttpRequest) -> None:
    sell("nothing")


async def async_nothing(request: HttpRequest) -> None:
    await sync_to_async(sell)("nothing")


def _please_wait(request: HttpRequest, error: Exception) -> HttpResponse:
    return HttpResponse("wait", status=202)


@lock_view("cart:1", timeout=0, on_busy=_please_wait)
def polite(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"sold {sell('polite')}", status=201)


@idempotent
@lock_view("cart:1", timeout=0, on_busy=_please_wait)
def polite_inside(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"sold {sell('polite')}", status=201)


@lock_view("cart:1", timeout=0, on_busy=_please_wait)
async def async_polite(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"sold {await sync_to_async(sell)('polite')}", status=201)


def reports(request: HttpRequest) -> HttpResponse:
    """Reports an exception that it has dealt with itself."""
    got_request_exception.send(sender=None, request=request)
    return HttpResponse(f"sold {sell('reports')}", status=201)


def raises(request: HttpRequest) -> HttpResponse:
    sell("raises")
    raise Broken


def soothed(request: HttpRequest) -> HttpResponse:
    """A decorator above ``@idempotent`` calls each failure a success."""
    try:
        return raises_inside(request)
    except Broken:
        return HttpResponse("thanks", status=201)


raises_inside = idempotent(raises)
soothed.__wrapped__ = raises_inside  # type: ignore[attr-defined]


@idempotent(atomic=False)
def raises_in_commit_in(request: Any) -> HttpResponse:
    with request.order.commit_in(transaction.atomic(durable=True)):
        sell("raises")
        raise Broken


def rolls_back(request: HttpRequest) -> HttpResponse:
    sell("rolls-back")
    transaction.set_rollback(True)
    return HttpResponse("better not", status=200)


def deletes_its_record(request: HttpRequest) -> HttpResponse:
    sell("deletes")
    OrderRecord.objects.all().delete()
    return HttpResponse("sold", status=201)


def to_login(request: HttpRequest) -> HttpResponse:
    payments.append(1)
    return HttpResponseRedirect(f"{settings.LOGIN_URL}?next=/")


class Envelope(APIView):
    """An API that says 200 to everything, and in the body whether all is well."""

    authentication_classes = ()

    def get_exception_handler(self) -> Any:
        return lambda error, context: Response({"code": 1}, status=200)

    def post(self, request: Any) -> Response:
        sell("envelope")
        raise APIException


class EnvelopeInside(IdempotentMixin, Envelope):
    """What it raises is known."""


class EnvelopeInCommitIn(IdempotentMixin, Envelope):
    order_options: ClassVar[dict[str, Any]] = {"atomic": False}

    def post(self, request: Any) -> Response:
        with request.order.commit_in(transaction.atomic(durable=True)):
            return super().post(request)


def sold_out(request: HttpRequest) -> HttpResponse:
    if refusing:
        raise Http404
    return HttpResponse(f"sold {sell('sold-out')}", status=201)


@idempotent(atomic=False)
def sold_out_in_commit_in(request: Any) -> HttpResponse:
    if refusing:
        return HttpResponse("sold out", status=410)
    with request.order.commit_in(transaction.atomic(durable=True)):
        number = sell("sold-out")
    return HttpResponse(f"sold {number}", status=201)


def deadlock() -> None:
    class Deadlock(Exception):
        sqlstate = "40P01"

    raise OperationalError from Deadlock()


def hooks(request: HttpRequest) -> HttpResponse:
    """A hook of its COMMIT meets a deadlock."""
    transaction.on_commit(deadlock)
    return HttpResponse(f"sold {sell('hooks')}", status=201)


def hooks_that_lose(request: HttpRequest) -> HttpResponse:
    """A hook of its COMMIT leaves a lock that was lost."""
    transaction.on_commit(_lose)
    return HttpResponse(f"sold {sell('hooks')}", status=201)


def _lose() -> None:
    raise LeaseLost("paused for too long")


@idempotent(atomic=False)
def hooks_in_commit_in(request: Any) -> HttpResponse:
    with request.order.commit_in(transaction.atomic(durable=True)):
        response = hooks(request)
        return request.order.respond_with(response) if "respond" in request.GET else response


def dangling(request: HttpRequest) -> HttpResponse:
    """Saves what the database refuses only at the COMMIT."""
    sell("dangling")
    Permission.objects.create(content_type_id=1_000_000, codename="x", name="x")
    return HttpResponse("sold", status=201)


@idempotent(atomic=False)
def dangling_in_commit_in(request: Any) -> HttpResponse:
    with request.order.commit_in(transaction.atomic(durable=True)):
        return request.order.respond_with(dangling(request))  # type: ignore[no-any-return]


VIEWS: dict[str, Any] = {
    "handled": Handled.as_view(),
    "handled-in-class": HandledInClass.as_view(),
    "unhandled": Pays.as_view(),
    "says": Says.as_view(),
    "api-exception": Pays.as_view(error=APIException),
    "nothing": nothing,
    "nothing-inside": nothing_inside,
    "async-nothing": async_nothing,
    "template": template,
    "polite": polite,
    "polite-inside": polite_inside,
    "async-polite": async_polite,
    "reports": reports,
    "raises": raises,
    "soothed": soothed,
    "raises-in-commit-in": raises_in_commit_in,
    "rolls-back": rolls_back,
    "deletes": deletes_its_record,
    "to-login": to_login,
    "envelope": Envelope.as_view(),
    "envelope-inside": EnvelopeInside.as_view(),
    "envelope-in-commit-in": EnvelopeInCommitIn.as_view(),
    "sold-out": sold_out,
    "sold-out-in-commit-in": sold_out_in_commit_in,
    "dangling": dangling,
    "dangling-in-commit-in": dangling_in_commit_in,
    "hooks": hooks,
    "hooks-in-commit-in": hooks_in_commit_in,
    "hooks-that-lose": hooks_that_lose,
}
urlpatterns = [path(f"orders/{kind}", view) for kind, view in VIEWS.items()]
