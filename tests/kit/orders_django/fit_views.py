"""Orders in the shapes that views have in projects: DRF, Django Ninja, Django's generic views.

Here the view is known by the ``kind`` that it sells.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from django.contrib.auth.decorators import permission_required
from django.contrib.auth.models import User
from django.db import IntegrityError, connection, transaction
from django.forms import CharField, Form
from django.http import HttpRequest, HttpResponse, JsonResponse, QueryDict
from django.urls import include, path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.generic import CreateView, FormView
from django_project.shop.models import Sale
from ninja import NinjaAPI, Schema
from ninja.errors import HttpError
from ninja.responses import Status
from ninja.security import APIKeyHeader, HttpBearer
from rest_framework import generics, routers, serializers, viewsets
from rest_framework.decorators import action, api_view, authentication_classes, permission_classes
from rest_framework.exceptions import NotFound
from rest_framework.parsers import BaseParser
from rest_framework.permissions import BasePermission
from rest_framework.renderers import JSONRenderer
from rest_framework.response import Response
from rest_framework.versioning import AcceptHeaderVersioning
from rest_framework.views import APIView

from lockkit_django import lock_view
from lockkit_django.orders import IdempotentMixin, idempotent
from orders_django.views import ApiSet, NotRefused, TokenUser, calls, sell

revoked: set[str] = set()
"""Tokens that are no longer good."""


def made(kind: str) -> HttpResponse:
    return HttpResponse(f"sold {sell(kind)}", status=201)


@idempotent(order_id="json.order_id", required=True)
def with_dot(request: HttpRequest) -> HttpResponse:
    return made("with-dot")


@idempotent(order_id="json:order_id", required=True)
def with_colon(request: HttpRequest) -> HttpResponse:
    return made("with-colon")


class MethodView(View):
    @idempotent
    def post(self, request: HttpRequest) -> HttpResponse:
        return made("method")

    def patch(self, request: HttpRequest) -> HttpResponse:
        return made("method-patch")

    @idempotent.exempt
    def put(self, request: HttpRequest) -> HttpResponse:
        return made("method-put")


@method_decorator(permission_required("shop.add_sale", raise_exception=True), name="post")
class DecoratedView(View):
    @method_decorator(idempotent)
    def post(self, request: HttpRequest) -> HttpResponse:
        return made("decorated")


class AsyncMethodView(View):
    @idempotent
    async def post(self, request: HttpRequest) -> HttpResponse:
        calls.append("async-method")
        sale = await Sale.objects.acreate(sku="async-method")
        return HttpResponse(f"sold {sale.pk}", status=201)


class MakeSale(CreateView):
    model = Sale
    fields = ("sku",)
    success_url = "/done/{id}"


class SaleForm(Form):
    sku = CharField()


@method_decorator(idempotent, name="dispatch")
class FormSale(FormView):
    form_class = SaleForm
    success_url = "/done"

    def form_valid(self, form: SaleForm) -> HttpResponse:
        sell("form-view")
        return super().form_valid(form)


@api_view(["POST"])
@authentication_classes([TokenUser])
@permission_classes([NotRefused])
@idempotent
def api_inside(request: Any) -> Response:
    return Response({"sold": sell("api-inside"), "to": request.user.username}, status=201)


@api_view(["POST"])
@lock_view("stock:api-locked")
def api_below_lock(request: Any) -> Response:
    return Response({"sold": sell("api-below-lock")}, status=201)


class ApiMethod(APIView):
    authentication_classes = (TokenUser,)
    permission_classes = (NotRefused,)

    @idempotent
    def post(self, request: Any) -> Response:
        return Response({"sold": sell("api-method"), "to": request.user.username}, status=201)


class OrderSerializer(serializers.ModelSerializer):
    class Meta:
        model = Sale
        fields = ("id", "sku")


class StreamParser(BaseParser):
    """As parsers of projects and of older DRFs are: it consumes Django's stream."""

    media_type = "application/json"

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> Any:
        return json.load(stream)


class ReadsData(BasePermission):
    """A permission that looks into the request: DRF then has consumed the stream."""

    def has_permission(self, request: Any, view: Any) -> bool:
        return request.data.get("sku") != "forbidden"


class OwnSale(BasePermission):
    def has_object_permission(self, request: Any, view: Any, sale: Sale) -> bool:
        return request.user.username not in revoked


class Create(generics.CreateAPIView):
    authentication_classes = (TokenUser,)
    permission_classes = (NotRefused, ReadsData)
    parser_classes = (StreamParser,)
    queryset = Sale.objects.all()
    serializer_class = OrderSerializer

    def perform_create(self, serializer: Any) -> None:
        calls.append("create")
        serializer.save()


class CreateMixed(IdempotentMixin, Create):
    order_options = {"order_id": "json.order_id", "required": True}  # noqa: RUF012


class ForCustomer(TokenUser):
    """The staff acts for a customer, and is noted beside it."""

    def authenticate(self, request: Any) -> Any:
        customer, _ = super().authenticate(request) or (None, None)
        return customer, User.objects.get_or_create(username="staff")[0]


class OnBehalf(APIView):
    authentication_classes = (ForCustomer,)
    permission_classes = (NotRefused,)

    def post(self, request: Any) -> Response:
        number, is_atomic = sell("on-behalf"), connection.in_atomic_block
        to = request.user.username
        return Response({"sold": number, "to": to, "atomic": is_atomic}, status=201)


class Versioned(APIView):
    authentication_classes = (TokenUser,)
    permission_classes = (NotRefused,)
    renderer_classes = (JSONRenderer,)
    versioning_class = AcceptHeaderVersioning

    def post(self, request: Any) -> Response:
        return Response({"sold": sell("versioned"), "version": request.version}, status=201)


class OnBehalfMixed(IdempotentMixin, OnBehalf):
    pass


class OnBehalfMethod(OnBehalf):
    post = idempotent(OnBehalf.post)


class OnBehalfInside(OnBehalf):
    def post(self, request: Any) -> Any:
        return self.made(request._request)

    @idempotent
    def made(self, request: HttpRequest) -> HttpResponse:
        return made("on-behalf-inside")


@idempotent
def unwrapped(request: Any) -> Response:
    return Response({"sold": sell("on-behalf-hidden")}, status=201)


def on_behalf_hidden(request: HttpRequest) -> Any:
    """A DRF view that the URL does not show."""
    view = api_view(["POST"])(authentication_classes([ForCustomer])(unwrapped))
    return view(request)


@method_decorator(idempotent(required=True), name="dispatch")
class ExemptMethod(View):
    @idempotent.exempt
    def post(self, request: HttpRequest) -> JsonResponse:
        sell("exempt-method")
        return JsonResponse({"atomic": connection.in_atomic_block}, status=201)

    def put(self, request: HttpRequest) -> HttpResponse:
        return made("exempt-method-put")


class ExemptMethodMixed(IdempotentMixin, OnBehalf):
    @idempotent.exempt
    def post(self, request: Any) -> Response:
        return super().post(request)


class StreamFormParser(StreamParser):
    media_type = "application/x-www-form-urlencoded"

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> Any:
        return QueryDict(stream.read())


class FormMixed(IdempotentMixin, APIView):
    authentication_classes = (TokenUser,)
    permission_classes = (ReadsData,)
    parser_classes = (StreamFormParser,)

    def post(self, request: Any) -> Response:
        return Response({"sold": sell("form-mixed"), "data": dict(request.data)}, status=201)


class Sales(viewsets.ModelViewSet):
    authentication_classes = (TokenUser,)
    permission_classes = (NotRefused, OwnSale)
    queryset = Sale.objects.all()
    serializer_class = OrderSerializer

    @action(detail=True, methods=["post"])
    def refund(self, request: Any, pk: Any = None) -> Response:
        sale = self.get_object()
        calls.append("refund")
        return Response({"refunded": sale.pk, "by": sell("refund")}, status=201)

    @action(detail=False, methods=["post"])
    @idempotent
    def gift(self, request: Any) -> Response:
        return Response({"sold": sell("gift")}, status=201)

    @action(detail=True, methods=["post"])
    def fails(self, request: Any, pk: Any = None) -> Response:
        sell("fails")
        raise NotFound


class SalesMixed(IdempotentMixin, Sales):
    pass


def recovers(request: Any) -> int:
    """Sells, although a block of its own fails."""
    number = sell("recovers")
    with suppress(LookupError, IntegrityError), transaction.atomic():
        Sale.objects.create(pk=number if "clash" in request.GET else None, sku="undone")
        raise LookupError
    return number


class Recovers(View):
    @lock_view("stock:recovers")
    def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(f"sold {recovers(request)}", status=201)


class RecoversInside(View):
    post = idempotent(Recovers.post)


class ApiRecovers(APIView):
    authentication_classes = ()
    permission_classes = ()

    @lock_view("stock:recovers")
    def post(self, request: Any) -> Response:
        return Response({"sold": recovers(request._request)}, status=201)


class ApiSetRecovers(viewsets.ViewSet):
    authentication_classes = ()
    permission_classes = ()
    buy = ApiRecovers.post


@api_view(["POST"])
@authentication_classes([])
@permission_classes([])
@lock_view("stock:recovers")
def api_recovers(request: Any) -> Response:
    return Response({"sold": recovers(request._request)}, status=201)


class LockedData(APIView):
    permission_classes = (ReadsData,)
    parser_classes = (StreamParser,)

    @lock_view("stock:{json.sku}")
    def post(self, request: Any) -> Response:
        lease = request._request.lease
        return Response({"locked": lease.name, "sku": request.data["sku"]})


class Token(HttpBearer):
    def authenticate(self, request: HttpRequest, token: str) -> User | None:
        if token in revoked:
            return None
        return User.objects.get_or_create(username=token)[0]


class AsyncToken(HttpBearer):
    async def authenticate(self, request: HttpRequest, token: str) -> str | None:
        return None if token in revoked else token


class Key(APIKeyHeader):
    param_name = "X-API-Key"

    def authenticate(self, request: HttpRequest, key: str | None) -> User | None:
        return User.objects.get_or_create(username=key)[0] if key else None


class Buy(Schema):
    sku: str
    order_id: str = ""


api = NinjaAPI(auth=Token(), urls_namespace="fit")


@api.post("/covered", response={201: dict[str, Any]})
def ninja_covered(request: HttpRequest, buy: Buy) -> Any:
    return Status(201, {"sold": sell("ninja-covered"), "sku": buy.sku})


@api.post("/inside", response={201: dict[str, Any]})
@idempotent(order_id="json.order_id", required=True)
def ninja_inside(request: HttpRequest, buy: Buy) -> Any:
    return Status(201, {"sold": sell("ninja-inside"), "sku": buy.sku})


@api.post("/async-covered", response={201: dict[str, Any]}, auth=AsyncToken())
async def ninja_async_covered(request: HttpRequest, buy: Buy) -> Any:
    calls.append("ninja-async-covered")
    sale = await Sale.objects.acreate(sku="ninja-async-covered")
    return Status(201, {"sold": sale.pk})


@api.post("/async-inside", response={201: dict[str, Any]}, auth=AsyncToken())
@idempotent
async def ninja_async_inside(request: HttpRequest, buy: Buy) -> Any:
    calls.append("ninja-async-inside")
    sale = await Sale.objects.acreate(sku="ninja-async-inside")
    return Status(201, {"sold": sale.pk})


@api.post("/key", response={201: dict[str, Any]}, auth=Key())
@idempotent
def ninja_key(request: HttpRequest, buy: Buy) -> Any:
    return Status(201, {"sold": sell("ninja-key")})


@api.post("/locked/{sku}", response={201: dict[str, Any]})
@idempotent
@lock_view("stock:{sku}")
def ninja_locked(request: HttpRequest, sku: str, buy: Buy) -> Any:
    return Status(201, {"sold": sell("ninja-locked")})


@api.post("/cart")
@lock_view("cart:{user.pk}")
def ninja_cart(request: HttpRequest) -> Any:
    return {"lock": request.lease.name}  # type: ignore[attr-defined]


@api.post("/recovers", response={201: dict[str, Any]}, auth=None)
@lock_view("stock:recovers")
def ninja_recovers(request: HttpRequest) -> Any:
    return Status(201, {"sold": recovers(request)})


@api.post("/exempt")
@idempotent.exempt
def ninja_exempt(request: HttpRequest, buy: Buy) -> Any:
    return {"sold": sell("ninja-exempt")}


@api.post("/refuses")
@idempotent
def ninja_refuses(request: HttpRequest, buy: Buy) -> Any:
    raise HttpError(404, "no such thing")


@api.post("/broken")
def ninja_broken(request: HttpRequest, buy: Buy) -> Any:
    sell("ninja-broken")
    raise ZeroDivisionError


router = routers.SimpleRouter()
router.register("orders/sales", Sales)
router.register("orders/sales-mixed", SalesMixed, "sales-mixed")

KINDS = {
    "with-dot": with_dot,
    "with-colon": with_colon,
    "method": MethodView.as_view(),
    "decorated": DecoratedView.as_view(),
    "async-method": AsyncMethodView.as_view(),
    "create-view": MakeSale.as_view(),
    "form-view": FormSale.as_view(),
    "api-inside": api_inside,
    "api-below-lock": api_below_lock,
    "api-method": ApiMethod.as_view(),
    "create": Create.as_view(),
    "create-mixed": CreateMixed.as_view(),
    "form-mixed": FormMixed.as_view(),
    "on-behalf": OnBehalf.as_view(),
    "on-behalf-mixed": OnBehalfMixed.as_view(),
    "exempt-mixed": idempotent.exempt(OnBehalfMixed.as_view()),
    "exempt-class": idempotent.exempt(ExemptMethod.as_view()),
    "exempt-method": ExemptMethod.as_view(),
    "exempt-method-mixed": ExemptMethodMixed.as_view(),
    "on-behalf-method": OnBehalfMethod.as_view(),
    "on-behalf-inside": OnBehalfInside.as_view(),
    "on-behalf-hidden": on_behalf_hidden,
    "recovers": Recovers.as_view(),
    "recovers-inside": RecoversInside.as_view(),
    "api-recovers": ApiRecovers.as_view(),
    "api-set-recovers": ApiSetRecovers.as_view({"post": "buy"}),
    "api-function-recovers": api_recovers,
    "locked-data": LockedData.as_view(),
    "versioned": Versioned.as_view(),
    "api-set": ApiSet.as_view({"post": "buy"}),
}
urlpatterns = [
    *(path(f"orders/{kind}", view) for kind, view in KINDS.items()),
    path("orders/ninja/", api.urls),
    path("", include(router.urls)),
]
