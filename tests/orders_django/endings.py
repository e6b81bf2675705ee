"""Views whose orders end in ways of which the answer says little."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import path
from rest_framework.exceptions import APIException
from rest_framework.response import Response
from rest_framework.views import APIView, exception_handler

from lockkit_django.models import OrderRecord
from lockkit_django.orders import idempotent
from orders_django.views import Broken, sell

payments: list[int] = []


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


def raises(request: HttpRequest) -> HttpResponse:
    sell("raises")
    raise Broken


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


VIEWS: dict[str, Any] = {
    "handled": Handled.as_view(),
    "handled-in-class": HandledInClass.as_view(),
    "unhandled": Pays.as_view(),
    "says": Says.as_view(),
    "api-exception": Pays.as_view(error=APIException),
    "raises": raises,
    "raises-in-commit-in": raises_in_commit_in,
    "rolls-back": rolls_back,
    "deletes": deletes_its_record,
    "to-login": to_login,
}
urlpatterns = [path(f"orders/{kind}", view) for kind, view in VIEWS.items()]
