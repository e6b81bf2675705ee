"""Views that commit themselves, and a URL configuration with them."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import Any, ClassVar

from asgiref.sync import sync_to_async
from django.db import IntegrityError, connection, transaction
from django.http import HttpRequest, HttpResponse
from django.template import engines
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from django_project.shop.models import Sale
from rest_framework.decorators import api_view
from rest_framework.response import Response
from rest_framework.views import APIView

from lockkit.model.errors import LeaseLost
from lockkit_django import lock_view, locks
from lockkit_django.orders import IdempotentMixin, idempotent
from orders_django import views
from orders_django.endings import deadlock
from orders_django.views import Broken, sell


def broken(number: int) -> None:
    raise Broken(number)


def commit(request: Any, kind: str, response: Any = None) -> Any:
    """One sale, committed here. With a response: stored with it."""
    with request.order.commit_in(transaction.atomic(durable=True)):
        number = sell(kind)
        return None if response is None else request.order.respond_with(response(number))


def text(number: int) -> HttpResponse:
    return HttpResponse(f"sold {number}", status=201, headers={"Location": "/sales/1"})


@idempotent(atomic=False)
def plain(request: HttpRequest) -> HttpResponse:
    with request.order.commit_in(transaction.atomic(durable=True)):  # type: ignore[attr-defined]
        number = sell("plain")
    return text(number)


@idempotent(atomic=False)
def responds(request: HttpRequest) -> HttpResponse:
    commit(request, "responds", text)
    return HttpResponse("not this one", status=200)


@idempotent(atomic=False)
def responds_then_fails(request: HttpRequest) -> HttpResponse:
    commit(request, "responds-then-fails", text)
    raise Broken


@idempotent(atomic=False)
def fails_inside(request: HttpRequest) -> HttpResponse:
    with request.order.commit_in(transaction.atomic(durable=True)):  # type: ignore[attr-defined]
        sell("fails-inside")
        raise Broken


@idempotent(atomic=False)
def fails_after(request: HttpRequest) -> HttpResponse:
    commit(request, "fails-after")
    raise Broken


@idempotent(atomic=False)
def tries_again(request: HttpRequest) -> HttpResponse:
    """Rolls its first block back itself."""
    try:
        with request.order.commit_in(transaction.atomic(durable=True)):  # type: ignore[attr-defined]
            broken(sell("tries-again"))
    except Broken:
        commit(request, "tries-again")
    return text(2)


@idempotent(atomic=False)
def twice(request: HttpRequest) -> HttpResponse:
    commit(request, "twice")
    commit(request, "twice")
    return text(1)


@idempotent(atomic=False)
def not_durable(request: HttpRequest) -> HttpResponse:
    with request.order.commit_in(transaction.atomic()):  # type: ignore[attr-defined]
        return text(sell("not-durable"))


@idempotent(atomic=False)
def elsewhere(request: HttpRequest) -> HttpResponse:
    block = transaction.atomic(using="other", durable=True)
    with request.order.commit_in(block):  # type: ignore[attr-defined]
        return text(sell("elsewhere"))


@idempotent(atomic=False)
def swallows(request: HttpRequest) -> HttpResponse:
    with request.order.commit_in(transaction.atomic(durable=True)):  # type: ignore[attr-defined]
        number = sell("swallows")
        with suppress(IntegrityError):
            Sale.objects.create(pk=number, sku="twice")
    return text(number)


@idempotent(atomic=False)
def swallows_in_bulk(request: HttpRequest) -> HttpResponse:
    """Of both kinds: Django has an ``atomic`` without a savepoint around them."""
    with request.order.commit_in(transaction.atomic(durable=True)):  # type: ignore[attr-defined]
        number = sell("swallows")
        with suppress(IntegrityError):
            Sale.objects.bulk_create([Sale(pk=number, sku="twice"), Sale(sku="new")])
    return text(number)


@idempotent(atomic=False)
def swallows_after_a_part(request: HttpRequest) -> HttpResponse:
    """It has asked for the rollback of a savepoint, and of nothing else."""
    with request.order.commit_in(transaction.atomic(durable=True)):  # type: ignore[attr-defined]
        number = sell("swallows")
        with transaction.atomic():
            sell("swallows")
            transaction.set_rollback(True)
        with suppress(IntegrityError):
            Sale.objects.bulk_create([Sale(pk=number, sku="twice"), Sale(sku="new")])
    return text(number)


@idempotent(atomic=False)
def rolls_back(request: HttpRequest) -> HttpResponse:
    with request.order.commit_in(transaction.atomic(durable=True)):  # type: ignore[attr-defined]
        sell("rolls-back")
        transaction.set_rollback(True)
    return text(1)


@idempotent(atomic=False)
def catches(request: HttpRequest) -> HttpResponse:
    with (
        suppress(IntegrityError),
        request.order.commit_in(transaction.atomic(durable=True)),  # type: ignore[attr-defined]
    ):
        Sale.objects.create(pk=sell("catches"), sku="twice")
    return text(1)


@idempotent(atomic=False)
def without(request: HttpRequest) -> HttpResponse:
    """Refuses before it has anything to commit."""
    return HttpResponse("no", status=int(request.GET.get("status", "400")))


@idempotent(atomic=False)
def dies_after_commit(request: HttpRequest) -> HttpResponse:
    commit(request, "dies-after-commit", text if "respond" in request.GET else None)
    os.kill(os.getpid(), signal.SIGKILL)
    return HttpResponse("impossible")


@idempotent(atomic=False)
def loses_inside(request: Any) -> HttpResponse:
    with request.order.commit_in(transaction.atomic(durable=True)):
        sell("loses-inside")
        raise LeaseLost("paused for too long")


@idempotent(atomic=False)
def loses_another(request: Any) -> HttpResponse:
    with request.order.commit_in(transaction.atomic(durable=True)):
        sell("loses-another")
        lease = locks["default"].lock("stock:42", until="commit").acquire()
        locks["default"].break_("stock:42", fence=lease.fencing_token)
        with suppress(LeaseLost):
            lease.extend()
    return HttpResponse("sold")


@idempotent(atomic=False)
def loses_outside(request: Any) -> HttpResponse:
    """What it has saved stays saved."""
    sell("loses-outside")
    raise LeaseLost("paused for too long")


@idempotent(atomic=False)
def conflicts_outside(request: Any) -> HttpResponse:
    """Its first transaction has been committed, and its second one meets another's."""
    sell("conflicts-outside")
    deadlock()
    return HttpResponse("impossible")


@idempotent(atomic=False)
def conflicts_inside(request: Any) -> HttpResponse:
    with request.order.commit_in(transaction.atomic(durable=True)):
        sell("conflicts-inside")
        deadlock()
    return HttpResponse("impossible")


@idempotent(atomic=False)
def loses(request: HttpRequest) -> HttpResponse:
    with request.order.commit_in(transaction.atomic(durable=True)):  # type: ignore[attr-defined]
        number = sell("loses")
        lease = request.order.leases[-1]  # type: ignore[attr-defined]
        assert locks["default"].break_(lease.name, fence=lease.fencing_token)
        assert not lease.release()
    return text(number)


@idempotent(atomic=False)
def mails(request: HttpRequest) -> HttpResponse:
    """Does something between its COMMIT and its response."""
    commit(request, "mails")
    views.started.set()
    views.go_on.wait(60)
    return text(1)


def is_atomic(request: HttpRequest) -> HttpResponse:
    return HttpResponse(str(connection.in_atomic_block))


@idempotent
def in_ours(request: HttpRequest) -> HttpResponse:
    commit(request, "in-ours")
    return text(1)


@idempotent(atomic=False)
@lock_view("stock:s1")
def locked(request: HttpRequest) -> HttpResponse:
    commit(request, "locked")
    return text(1)


@idempotent(atomic=False)
def template(request: HttpRequest) -> Any:
    page = engines["django"].from_string("sold {{ pk }}")
    return commit(request, "template", lambda n: TemplateResponse(request, page, {"pk": n}))


@idempotent(atomic=False)
async def coroutine(request: HttpRequest) -> HttpResponse:
    return await sync_to_async(commit)(request, "coroutine", text)  # type: ignore[no-any-return]


class Method(View):
    @idempotent(atomic=False)
    def post(self, request: HttpRequest) -> HttpResponse:
        return commit(request, "method", text)  # type: ignore[no-any-return]


@method_decorator(idempotent, name="dispatch")
class AsyncClass(View):
    async def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(f"sold {await sync_to_async(sell)('async-class')}", status=201)


@api_view(["POST"])
@idempotent(atomic=False)
def api(request: Any) -> Response:
    return commit(request, "api", lambda n: Response({"sold": n}, 201))  # type: ignore[no-any-return]


class Mixed(IdempotentMixin, APIView):
    order_options: ClassVar[dict[str, Any]] = {"atomic": False, "required": True}

    def post(self, request: Any) -> Response:
        return commit(request, "mixed", lambda n: Response({"sold": n}, 201))  # type: ignore[no-any-return]


VIEWS: dict[str, Any] = {
    "plain": plain,
    "responds": responds,
    "responds-then-fails": responds_then_fails,
    "fails-inside": fails_inside,
    "fails-after": fails_after,
    "tries-again": tries_again,
    "twice": twice,
    "not-durable": not_durable,
    "elsewhere": elsewhere,
    "swallows": swallows,
    "swallows-in-bulk": swallows_in_bulk,
    "swallows-after-a-part": swallows_after_a_part,
    "rolls-back": rolls_back,
    "catches": catches,
    "without": without,
    "dies-after-commit": dies_after_commit,
    "loses": loses,
    "loses-outside": loses_outside,
    "conflicts-outside": conflicts_outside,
    "conflicts-inside": conflicts_inside,
    "loses-inside": loses_inside,
    "loses-another": loses_another,
    "mails": mails,
    "in-ours": in_ours,
    "locked": locked,
    "template": template,
    "coroutine": coroutine,
    "method": Method.as_view(),
    "atomic": idempotent(atomic=False)(is_atomic),
    "never-atomic": idempotent(atomic=False)(transaction.non_atomic_requests(is_atomic)),
    "async-class": AsyncClass.as_view(),
    "api": api,
    "mixed": Mixed.as_view(),
}
urlpatterns = [path(f"orders/{kind}", view) for kind, view in VIEWS.items()]
