"""Views that sell in the databases ``orders`` and ``other``, which tests set up."""

from __future__ import annotations

import select
import threading
from contextlib import suppress
from http import HTTPStatus
from typing import Any, cast

from django.core.exceptions import PermissionDenied
from django.db import DatabaseError, connections, transaction
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from django_project.shop.models import Sale
from rest_framework.response import Response
from rest_framework.views import APIView

from lockkit_django import lock_view
from lockkit_django.models import OrderRecord
from lockkit_django.orders import IdempotentMixin, idempotent

calls: list[str] = []
started = threading.Event()
go_on = threading.Event()
both = threading.Barrier(2)
before_update: list[Any] = []


def sell(kind: str, using: str = "orders") -> int:
    calls.append(kind)
    return int(Sale.objects.using(using).create(sku=kind).pk)


def quick(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"sold {sell('quick')}", status=201)


def rolls_back_to_a_savepoint(request: HttpRequest) -> HttpResponse:
    with suppress(DatabaseError), transaction.atomic("orders"):
        raise DatabaseError
    return quick(request)


def created(request: HttpRequest) -> HttpResponse:
    response = HttpResponse(f"sold {sell('created')}")
    response.status_code = HTTPStatus.CREATED
    return response


def clears(request: HttpRequest) -> HttpResponse:
    """Deletes all records, its own too."""
    OrderRecord.objects.using("orders").all().delete()
    return HttpResponse(f"sold {sell('clears')}", status=201)


def waits(request: HttpRequest) -> HttpResponse:
    number = sell("waits")
    started.set()
    if len(calls) == 1:
        go_on.wait(60)
    status = 500 if "fail" in request.GET and len(calls) == 1 else 201
    return HttpResponse(f"sold {number}", status=status)


def crosses(request: HttpRequest, first: int, second: int) -> HttpResponse:
    """Changes two rows; the first time it meets the one who changes them the other way round."""
    rows = Sale.objects.using("orders")
    rows.filter(pk=first).update(sku="crossed")
    if not both.broken and len(calls) < 2:
        calls.append("crosses")
        both.wait(30)
    rows.filter(pk=second).update(sku="crossed")
    return HttpResponse("crossed", status=201)


def reads_first(request: HttpRequest, row: int) -> HttpResponse:
    """Somebody else changes the row between its reading and its writing."""
    rows = Sale.objects.using("orders").filter(pk=row)
    rows.get()
    while before_update:
        before_update.pop()()
    rows.update(sku="mine")
    return HttpResponse("changed", status=201)


PATIENCE = {
    "postgresql": "SELECT current_setting('lock_timeout')",
    "mysql": "SELECT @@SESSION.innodb_lock_wait_timeout",
}


def patience() -> str:
    """How long a statement waits for a lock, as this thread's connection has it set."""
    connection = connections["orders"]
    with connection.cursor() as cursor:
        cursor.execute(PATIENCE[connection.vendor])
        return str(cursor.fetchone()[0])


def patient(request: HttpRequest) -> HttpResponse:
    return HttpResponse(patience(), status=201)


@idempotent(using="orders", atomic=False)
def patient_in_commit_in(request: HttpRequest) -> HttpResponse:
    with request.order.commit_in(transaction.atomic("orders", durable=True)):  # type: ignore[attr-defined]
        return HttpResponse(patience(), status=201)


@idempotent(using="orders", atomic=False)
def waits_in_commit_in(request: HttpRequest) -> HttpResponse:
    with request.order.commit_in(transaction.atomic("orders", durable=True)):  # type: ignore[attr-defined]
        return waits(request)


@idempotent(using="orders", atomic=False)
def commits(request: HttpRequest) -> HttpResponse:
    with request.order.commit_in(transaction.atomic("orders", durable=True)):  # type: ignore[attr-defined]
        return HttpResponse(f"sold {sell('commits')}", status=201)


@idempotent(atomic=False)
def charges(request: HttpRequest) -> HttpResponse:
    """Does something elsewhere, and then saves it."""
    calls.append("charged")
    with request.order.commit_in(transaction.atomic("orders", durable=True)):  # type: ignore[attr-defined]
        return HttpResponse(f"sold {sell('charges')}", status=201)


def _wrong_statement() -> None:
    """Django hears nothing of an error in a cursor of the view's."""
    with suppress(DatabaseError), connections["orders"].cursor() as cursor:
        cursor.execute("SELECT * FROM nowhere")


def idles(request: HttpRequest) -> HttpResponse:
    """Until the server has ended its transaction: a payment that is slow."""
    number = sell("idles")
    with connections["orders"].cursor() as cursor:
        cursor.execute("SET LOCAL idle_in_transaction_session_timeout = '1ms'")
    driver = connections["orders"].connection
    assert select.select([driver.fileno()], [], [], 60)[0]
    return HttpResponse(f"sold {number}", status=201)


@idempotent(using="orders", atomic=False)
def idles_in_commit_in(request: HttpRequest) -> HttpResponse:
    with request.order.commit_in(transaction.atomic("orders", durable=True)):  # type: ignore[attr-defined]
        return idles(request)


@transaction.non_atomic_requests("orders")
def swallows(request: HttpRequest) -> HttpResponse:
    number = sell("swallows")
    _wrong_statement()
    return HttpResponse(f"sold {number}", status=int(request.GET.get("status", "201")))


@idempotent(atomic=False, using="orders")
def swallows_in_commit_in(request: Any) -> HttpResponse:
    with request.order.commit_in(transaction.atomic("orders", durable=True)):
        number = sell("swallows")
        _wrong_statement()
    return HttpResponse(f"sold {number}", status=int(request.GET.get("status", "201")))


def _sell_around_a_rollback() -> int:
    """By the database, as at the end of a deadlock: Django does not hear of it."""
    sell("lost")
    connections["orders"].connection.rollback()
    return sell("after")


@transaction.non_atomic_requests("orders")
def goes_on(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"sold {_sell_around_a_rollback()}", status=201)


@idempotent(atomic=False, using="orders")
def goes_on_in_commit_in(request: Any) -> HttpResponse:
    with request.order.commit_in(transaction.atomic("orders", durable=True)):
        number = _sell_around_a_rollback()
    return HttpResponse(f"sold {number}", status=201)


@transaction.non_atomic_requests("orders")
def refuses(request: HttpRequest) -> HttpResponse:
    """Saves what stays, such as a failed attempt, although it refuses."""
    sell("refuses")
    if "status" not in request.GET:
        raise PermissionDenied
    return HttpResponse("slower", status=int(request.GET["status"]))


class SwallowsInMethod(View):
    """Django has its callback in a transaction, because of ATOMIC_REQUESTS."""

    @method_decorator(idempotent)
    def post(self, request: HttpRequest) -> HttpResponse:
        return swallows(request)


def where(kind: str) -> HttpResponse:
    """Sells in both; tells which databases have a transaction."""
    open_in = [a for a in ("orders", "other") if connections[a].in_atomic_block]
    sell(kind, "orders")
    sell(kind, "other")
    return HttpResponse(" ".join(open_in), status=201)


def outside(request: HttpRequest) -> HttpResponse:
    return where("outside")


@idempotent
def inside(request: HttpRequest) -> HttpResponse:
    return where("inside")


@idempotent(using="other")
def inside_other(request: HttpRequest) -> HttpResponse:
    return where("inside-other")


@idempotent
@lock_view("stock:s1")
def inside_locked(request: HttpRequest) -> HttpResponse:
    return where("inside-locked")


class Method(View):
    @method_decorator(idempotent)
    def post(self, request: HttpRequest) -> HttpResponse:
        return where("method")

    @method_decorator(idempotent)
    def get(self, request: HttpRequest) -> HttpResponse:
        return where("method")


class Mixed(IdempotentMixin, APIView):
    authentication_classes = ()

    def post(self, request: Any) -> Response:
        return Response(where("mixed").content.decode(), 201)


def swallows_in_request(request: HttpRequest) -> HttpResponse:
    """Under ATOMIC_REQUESTS."""
    number = sell("swallows")
    _wrong_statement()
    return HttpResponse(f"sold {number}", status=201)


def ends_it(request: HttpRequest) -> HttpResponse:
    """The transaction, behind Django's back; what follows is another one."""
    connections["orders"].connection.rollback()
    return HttpResponse(f"sold {sell('ends')}", status=201)


def ends_it_and_waits(request: HttpRequest) -> HttpResponse:
    """The first try ends the transaction, and then waits for another one."""
    calls.append("ends")
    if len(calls) == 1:
        connections["orders"].connection.rollback()
        started.set()
        go_on.wait(60)
    return HttpResponse(f"sold {sell('ends')}", status=201)


tenant = threading.local()
"""For each thread, the database of the tenant whose request it works on."""


class OfTenant:
    """A router: what belongs to no tenant is in ``other``."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return getattr(tenant, "alias", "other")

    db_for_write = db_for_read


def for_tenant(get_response: Any) -> Any:
    """A middleware that knows nothing of event loops: each request is one of ``orders``."""

    def middleware(request: HttpRequest) -> HttpResponse:
        tenant.alias = "orders"
        try:
            return cast(HttpResponse, get_response(request))
        finally:
            del tenant.alias

    return middleware


def of_tenant(request: HttpRequest) -> HttpResponse:
    calls.append("of-tenant")
    return HttpResponse(f"sold {Sale.objects.create(sku='of-tenant').pk}", status=201)


async def of_tenant_async(request: HttpRequest) -> HttpResponse:
    calls.append("of-tenant")
    return HttpResponse(f"sold {(await Sale.objects.acreate(sku='of-tenant')).pk}", status=201)


def of_tenant_until_refused(request: HttpRequest) -> HttpResponse:
    """Says no, has its transaction rolled back, and leaves this thread to everybody."""
    calls.append("of-tenant")
    transaction.set_rollback(True, using="orders")
    tenant.alias = "other"
    return HttpResponse("no", status=422)


def fenced(request: Any) -> HttpResponse:
    return HttpResponse(str(request.order.fencing_token), status=201)


urlpatterns = [
    path("orders/of-tenant", of_tenant),
    path("orders/of-tenant-inside", idempotent(of_tenant)),
    path("orders/of-tenant-async", of_tenant_async),
    path("orders/of-tenant-async-inside", idempotent(of_tenant_async)),
    path("orders/of-tenant-until-refused", of_tenant_until_refused),
    path("orders/fenced", fenced),
    path("orders/swallows-in-request", swallows_in_request),
    path("orders/goes-on", goes_on),
    path("orders/goes-on-in-commit-in", goes_on_in_commit_in),
    path("orders/ends-it", ends_it),
    path("orders/ends-it-and-waits", ends_it_and_waits),
    path("orders/quick", quick),
    path("orders/rolls-back-to-a-savepoint", rolls_back_to_a_savepoint),
    path("orders/created", created),
    path("orders/clears", clears),
    path("orders/waits", waits),
    path("orders/idles", idles),
    path("orders/idles-in-commit-in", idles_in_commit_in),
    path("orders/swallows", swallows),
    path("orders/refuses", refuses),
    path("orders/swallows-in-commit-in", swallows_in_commit_in),
    path("orders/swallows-in-method", SwallowsInMethod.as_view()),
    path("orders/crosses/<int:first>/<int:second>", crosses),
    path("orders/reads-first/<int:row>", reads_first),
    path("orders/commits", commits),
    path("orders/charges", charges),
    path("orders/patient", patient),
    path("orders/patient-in-commit-in", patient_in_commit_in),
    path("orders/waits-in-commit-in", waits_in_commit_in),
    path("orders/outside", outside),
    path("orders/inside", inside),
    path("orders/inside-other", inside_other),
    path("orders/inside-locked", inside_locked),
    path("orders/method", Method.as_view()),
    path("orders/mixed", Mixed.as_view()),
]
