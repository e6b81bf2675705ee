"""One order view of each kind. All record a sale of their kind and the value of ``n``.

``calls`` counts the views that ran in this process.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

from django.contrib.auth.decorators import login_required, permission_required
from django.contrib.auth.mixins import PermissionRequiredMixin
from django.contrib.auth.models import User
from django.db import IntegrityError, connection, transaction
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.template import engines
from django.template.response import SimpleTemplateResponse, TemplateResponse
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.gzip import gzip_page
from django_project.shop.models import Sale
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.decorators import action, api_view
from rest_framework.exceptions import APIException, AuthenticationFailed, ValidationError
from rest_framework.permissions import BasePermission
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from lockkit.model.errors import LeaseLost
from lockkit_django import alocks, lock_view, locks
from lockkit_django.orders import IdempotentMixin, idempotent

calls: list[str] = []
refused_drf_users: set[str] = set()


class Broken(Exception):
    """What a failing view raises."""


def sell(kind: str) -> int:
    """The effect: a row. Its number makes the response of each execution different."""
    calls.append(kind)
    return int(Sale.objects.create(sku=kind).pk)


def function(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"sold {sell('function')}", status=201, headers={"Location": "/sales/1"})


started = threading.Event()
go_on = threading.Event()


def waits(request: HttpRequest) -> HttpResponse:
    """Runs until the test lets it go on."""
    number = sell("waits")
    started.set()
    go_on.wait(60)
    return HttpResponse(f"sold {number}", status=int(request.GET.get("status", "201")))


async def async_waits(request: HttpRequest) -> HttpResponse:
    calls.append("async-waits")
    sale = await Sale.objects.acreate(sku="async-waits")
    started.set()
    await asyncio.to_thread(go_on.wait, 60)
    await Sale.objects.acreate(sku="async-waits")
    return HttpResponse(f"sold {sale.pk}", status=201)


def _late(view: Any) -> Any:
    """A check above the order that takes until the test lets it go on."""

    @wraps(view)
    def checked(*args: Any, **kwargs: Any) -> Any:
        started.set()
        go_on.wait(60)
        return view(*args, **kwargs)

    return checked


@_late
@idempotent
def late_inside(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"sold {sell('late-inside')}", status=201)


def slow(request: HttpRequest) -> HttpResponse:
    """Long enough for duplicates to meet it while it runs."""
    number = sell("slow")
    time.sleep(0.1)
    return HttpResponse(f"sold {number}", status=201)


def dies(request: HttpRequest) -> HttpResponse:
    """Kills its process, but only the first time: a repeat finds the file."""
    number = sell("dies")
    try:
        Path(os.environ["ORDERS_DEATH"]).touch(exist_ok=False)
    except FileExistsError:
        return HttpResponse(f"sold {number}", status=201)
    os.kill(os.getpid(), signal.SIGKILL)
    return HttpResponse("impossible")


def named(request: HttpRequest, name: str) -> HttpResponse:
    return HttpResponse(f"sold {sell('named')}", status=201)


class ClassView(View):
    def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(f"sold {sell('class')}", status=201)


class TokenUser(BaseAuthentication):
    def authenticate(self, request: Any) -> tuple[User, None] | None:
        token = request.headers.get("Authorization", "")
        if not token.startswith("Token "):
            return None
        if token == "Token wrong":
            raise AuthenticationFailed
        return User.objects.get_or_create(username=token.removeprefix("Token "))[0], None

    def authenticate_header(self, request: Any) -> str:
        return "Token"


class NotRefused(BasePermission):
    def has_permission(self, request: Any, view: Any) -> bool:
        return request.user.is_authenticated and request.user.username not in refused_drf_users


class Api(APIView):
    authentication_classes = (TokenUser,)
    permission_classes = (NotRefused,)

    def post(self, request: Any) -> Response:
        return Response({"sold": sell("api"), "to": request.user.username}, status=201)


class ApiMixed(IdempotentMixin, Api):
    def post(self, request: Any) -> Response:
        return Response({"sold": sell("api-mixed"), "to": request.user.username}, status=201)


class ApiLateMixed(ApiMixed):
    check_permissions = _late(Api.check_permissions)


class ApiSession(APIView):
    authentication_classes = (SessionAuthentication, TokenUser)
    permission_classes = (NotRefused,)

    def post(self, request: Any) -> Response:
        return Response({"sold": sell("api-session"), "to": request.user.username}, status=201)


class ApiLocked(APIView):
    authentication_classes = (TokenUser,)
    permission_classes = (NotRefused,)

    @lock_view("stock:api")
    def post(self, request: Any) -> Response:
        return Response({"sold": sell("api-locked")}, status=201)


class ApiLockedMixed(IdempotentMixin, Api):
    @lock_view("stock:api")
    def post(self, request: Any) -> Response:
        return Response({"sold": sell("api-locked-mixed")}, status=201)


class ApiSet(ViewSet):
    authentication_classes = (TokenUser,)
    permission_classes = (NotRefused,)

    @action(detail=False, methods=["post"])
    def buy(self, request: Any) -> Response:
        return Response({"sold": sell("api-set")}, status=201)


class ApiSetMixed(IdempotentMixin, ApiSet):
    @action(detail=False, methods=["post"])
    def buy(self, request: Any) -> Response:
        return Response({"sold": sell("api-set-mixed")}, status=201)


@api_view(["POST"])
def api_function(request: Any) -> Response:
    return Response({"sold": sell("api-function")}, status=201)


class ApiInvalid(APIView):
    authentication_classes = (TokenUser,)
    permission_classes = (NotRefused,)

    def post(self, request: Any) -> Response:
        sell("api-invalid")
        raise ValidationError("no")


class ApiInvalidMixed(IdempotentMixin, ApiInvalid):
    def post(self, request: Any) -> Response:
        sell("api-invalid-mixed")
        raise ValidationError("no")


class ApiBroken(APIView):
    authentication_classes = (TokenUser,)
    permission_classes = (NotRefused,)

    def post(self, request: Any) -> Response:
        sell("api-broken")
        raise APIException


def template(request: HttpRequest) -> TemplateResponse:
    text = engines["django"].from_string("sold {{ pk }}")
    return TemplateResponse(request, text, {"pk": sell("template")}, status=201)


def template_query(request: HttpRequest) -> TemplateResponse:
    """Writes while it renders, which is after the view."""
    text = engines["django"].from_string("sold {{ pk }}")
    return TemplateResponse(request, text, {"pk": lambda: sell("template-query")}, status=201)


class _FailsLate(SimpleTemplateResponse):
    @property
    def rendered_content(self) -> str:
        raise Broken("late")


def template_broken(request: HttpRequest) -> TemplateResponse:
    sell("template-broken")
    return _FailsLate(engines["django"].from_string("x"))


def broken(request: HttpRequest) -> HttpResponse:
    sell("broken")
    raise Broken


def told_to_end(request: HttpRequest) -> HttpResponse:
    """As a worker whose time is up."""
    sell("told-to-end")
    raise SystemExit(1)


def returns_500(request: HttpRequest) -> HttpResponse:
    sell("returns-500")
    return HttpResponse("sorry", status=500)


def returns(request: HttpRequest, status: int) -> HttpResponse:
    return HttpResponse(f"{status} {sell(str(status))}", status=status)


def not_found(request: HttpRequest) -> HttpResponse:
    sell("not-found")
    raise Http404


def caught(request: HttpRequest) -> HttpResponse:
    """A middleware turns this one into a 400."""
    sell("caught")
    raise KeyError


class CatchKeyErrors:
    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        return HttpResponse("caught", status=400) if isinstance(error, KeyError) else None


def swallows_in_bulk(request: HttpRequest) -> HttpResponse:
    """Of both kinds: Django has an ``atomic`` without a savepoint around them."""
    number = sell("swallows-in-bulk")
    with suppress(IntegrityError):
        Sale.objects.bulk_create([Sale(pk=number, sku="twice"), Sale(sku="new")])
    return HttpResponse("swallowed", status=200)


def swallows_database_error(request: HttpRequest) -> HttpResponse:
    sale = sell("swallows")
    try:
        Sale.objects.create(pk=sale, sku="twice")
    except IntegrityError:
        return HttpResponse("swallowed", status=200)
    return HttpResponse("impossible", status=200)


def durable(request: HttpRequest) -> HttpResponse:
    with transaction.atomic(durable=True):
        sell("durable")
    return HttpResponse("sold")


def streaming(request: HttpRequest) -> StreamingHttpResponse:
    number = sell("streaming")
    return StreamingHttpResponse([b"sold ", str(number).encode()], headers={"Location": "/s/1"})


def large(request: HttpRequest) -> HttpResponse:
    sell("large")
    return HttpResponse("x" * 2000, headers={"Location": "/large/1"})


@gzip_page
def gzipped(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"sold {sell('gzipped')} " + "x" * 500)


def cookie(request: HttpRequest) -> HttpResponse:
    response = HttpResponse(f"sold {sell('cookie')}", headers={"X-Other": "1", "ETag": '"e"'})
    response.set_cookie("secret", "of-the-first")
    return response


GUARDS = {
    "Cache-Control": "private, no-store",
    "Content-Disposition": 'attachment; filename="invoice.html"',
    "Content-Security-Policy": "sandbox",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""What turns somebody else's page into a harmless download."""


def download(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"<script>{sell('download')}</script>", headers=GUARDS)


STEERING = {
    "HX-Redirect": "/orders/7/thanks",
    "HX-Trigger-After-Swap": '{"sold": 7}',
    "X-Inertia": "true",
    "X-Inertia-Location": "/orders/7",
    "Refresh": "0;url=/orders/7",
}
"""What htmx, Inertia and browsers do next. The body may be empty."""


def steers(request: HttpRequest) -> HttpResponse:
    sell("steers")
    return HttpResponse(status=204, headers={**STEERING, "HX-Unknown": "1"})


def by_the_server(request: HttpRequest) -> HttpResponse:
    """The server in front sends the file of this path as the body."""
    return HttpResponse(headers={"X-Accel-Redirect": f"/protected/{sell('by-the-server')}.pdf"})


def fields(request: HttpRequest, **kwargs: Any) -> HttpResponse:
    """Reads its body or form after the middleware has."""
    files = {name: upload.read().decode() for name, upload in request.FILES.items()}
    is_form = request.method == "POST" and (request.content_type or "").startswith("multipart/")
    body = request.POST.dict() if is_form else request.body.decode()
    return HttpResponse(f"{sell('fields')} {body} {files}", status=201)


@login_required
def for_users(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"sold {sell('for-users')}", status=201)


@permission_required("shop.add_sale", raise_exception=True)
def permitted(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"sold {sell('permitted')}", status=201)


@permission_required("shop.add_sale")
def permitted_or_login(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"sold {sell('permitted-or-login')}", status=201)


@permission_required("shop.add_sale", raise_exception=True)
@idempotent
def permitted_inside(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"sold {sell('permitted-inside')}", status=201)


class PermittedClass(PermissionRequiredMixin, View):
    permission_required = "shop.add_sale"

    def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(f"sold {sell('permitted-class')}", status=201)


@method_decorator(permission_required("shop.add_sale", raise_exception=True), name="dispatch")
class PermittedDispatch(View):
    def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(f"sold {sell('permitted-dispatch')}", status=201)


class PermittedMethod(View):
    @method_decorator(permission_required("shop.add_sale", raise_exception=True))
    def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(f"sold {sell('permitted-method')}", status=201)


class ApiPermittedMethod(APIView):
    @method_decorator(permission_required("shop.add_sale", raise_exception=True))
    def post(self, request: Any) -> Response:
        return Response({"sold": sell("api-permitted-method")}, status=201)


@method_decorator(permission_required("shop.add_sale", raise_exception=True), name="dispatch")
@method_decorator(idempotent, name="dispatch")
class PermittedDispatchInside(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("a form")

    def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(f"sold {sell('permitted-dispatch-inside')}", status=201)


@idempotent(order_id="json:number", required=True)
def json_number(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"sold {sell('json-number')}", status=201)


@idempotent.exempt
def exempt(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"sold {sell('exempt')}", status=201)


@lock_view("stock:{sku}")
def locked(request: HttpRequest, sku: str) -> HttpResponse:
    return HttpResponse(f"sold {sell('locked')}", status=201)


@lock_view("outer:{sku}")
@lock_view("stock:{sku}")
def locked_twice(request: HttpRequest, sku: str) -> HttpResponse:
    return HttpResponse(f"sold {sell('locked-twice')}", status=201)


@idempotent
@lock_view("stock:{sku}")
def inside_locked(request: HttpRequest, sku: str) -> HttpResponse:
    return HttpResponse(f"sold {sell('inside-locked')}", status=201)


@lock_view("stock:busy", timeout=0, on_busy=lambda request, error: HttpResponse("come back"))
def busy(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"sold {sell('busy')}", status=201)


@lock_view("stock:1")
def _locked(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"sold {sell('passes-by')}", status=201)


@wraps(_locked)
def passes_by(request: HttpRequest) -> HttpResponse:
    """It has the marks of the lock, but takes it only if the query says ``lock``."""
    if "lock" in request.GET:
        return _locked(request)
    return HttpResponse(f"sold {sell('passes-by')}", status=201)


@idempotent(atomic=False)
@wraps(_locked)
def passes_by_inside(request: HttpRequest) -> HttpResponse:
    return passes_by(request)


@method_decorator(lock_view("outer:{sku}"), name="dispatch")
class LockedTwice(View):
    @lock_view("stock:{sku}")
    def post(self, request: HttpRequest, sku: str) -> HttpResponse:
        return HttpResponse(f"sold {sell('locked-twice-class')}", status=201)


@method_decorator(idempotent, name="dispatch")
class LockedInside(View):
    @lock_view("stock:{sku}")
    def post(self, request: HttpRequest, sku: str) -> HttpResponse:
        return HttpResponse(f"sold {sell('locked-inside-class')}", status=201)


@method_decorator(lock_view("stock:{sku}"), name="dispatch")
class WrongWayRound(View):
    def get(self, request: HttpRequest, sku: str) -> HttpResponse:
        return HttpResponse()

    @idempotent
    def post(self, request: HttpRequest, sku: str) -> HttpResponse:
        return HttpResponse(f"sold {sell('wrong-way-round')}", status=201)


@csrf_exempt
def no_csrf(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"sold {sell('no-csrf')}", status=201)


def loses_its_lease(request: Any) -> HttpResponse:
    lease = request.order.leases[-1]
    sell("loses")
    assert locks["default"].break_(lease.name, fence=request.order.fencing_token)
    with suppress(LeaseLost):
        lease.extend()
    return HttpResponse("sold", status=201)


def closes_connection(request: HttpRequest) -> HttpResponse:
    """As a failover of the database does it."""
    sell("closes")
    connection.close()
    return HttpResponse("sold", status=201)


async def async_function(request: HttpRequest) -> HttpResponse:
    calls.append("async")
    sale = await Sale.objects.acreate(sku="async")
    await asyncio.sleep(0)
    return HttpResponse(f"sold {sale.pk}", status=201)


@idempotent
async def async_inside(request: HttpRequest) -> HttpResponse:
    calls.append("async-inside")
    sale = await Sale.objects.acreate(sku="async-inside")
    return HttpResponse(f"sold {sale.pk}", status=201)


@lock_view("stock:{sku}")
async def async_locked(request: HttpRequest, sku: str) -> HttpResponse:
    calls.append("async-locked")
    sale = await Sale.objects.acreate(sku=sku)
    return HttpResponse(f"sold {sale.pk}", status=201)


async_locked_inside = idempotent(async_locked)


async def async_loses_its_lease(request: Any) -> HttpResponse:
    lease = request.order.leases[-1]
    await Sale.objects.acreate(sku="async-loses")
    assert await alocks["default"].break_(lease.name, fence=request.order.fencing_token)
    with suppress(LeaseLost):
        await lease.extend()
    return HttpResponse("sold", status=201)


async def async_broken(request: HttpRequest) -> HttpResponse:
    calls.append("async-broken")
    await Sale.objects.acreate(sku="async-broken")
    raise Broken
