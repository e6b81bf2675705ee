"""The shop for people: a page, an order form, and what is going on."""

from __future__ import annotations

from functools import partial

from django.contrib.auth import get_user_model, login, logout
from django.db.models import Count
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.middleware.csrf import get_token
from django.shortcuts import redirect
from django.views.decorators.http import require_GET, require_POST

from lockkit_django import lock_view, locks
from lockkit_django.forms import order_id_field
from shop import models, page, place
from shop import status as watch
from shop.books import DjangoBooks
from shop.rules import GUEST, Order, Refused, read_order, sell, shown


@require_GET
def index(request: HttpRequest) -> HttpResponse:
    visit = page.Visit(
        user=_user(request),
        csrf_field="csrfmiddlewaretoken",
        csrf_token=get_token(request),
        order_id_field=partial(order_id_field, request),
        framework="django",
    )
    return HttpResponse(page.index(visit, _shelves()), headers={"Cache-Control": "no-store"})


@require_POST
@lock_view("stock:{form.sku:str}")
def orders(request: HttpRequest) -> HttpResponse:
    """Place an order: once per user and order ID, by the middleware; one at a time, by the lock."""
    fields = request.POST.dict() | {"order_id": request.order.order_id}
    try:
        sold = sell(DjangoBooks(), read_order(fields, user=_user(request) or GUEST))
    except Refused as refusal:
        return _refused(request, str(refusal), refusal.status)
    return _ordered(request, sold.order)


@require_GET
def status(request: HttpRequest) -> JsonResponse:
    """What the page shows, live."""
    by_machine = models.Order.objects.values_list("machine").annotate(Count("pk"))
    held, trouble = watch.held(locks["default"].holders)
    return JsonResponse(
        {
            "machine": place.machine(),
            "products": [watch.product(shelf) for shelf in _shelves()],
            "orders": dict(by_machine),
            "locks": held,
            "store": trouble,
        },
        headers={"Cache-Control": "no-store"},
    )


@require_GET
def ping(request: HttpRequest) -> HttpResponse:
    return HttpResponse(place.machine(), content_type="text/plain")


@require_POST
def log_in(request: HttpRequest) -> HttpResponse:
    """Become one of the demo's users, who have no password: this shop listens on 127.0.0.1."""
    name = request.POST.get("user", "")
    if name not in page.DEMO_USERS:
        return _refused(request, "no such user", 403)
    user, _ = get_user_model().objects.get_or_create(username=name)
    login(request, user, backend="django.contrib.auth.backends.ModelBackend")
    return redirect("/")


@require_POST
def log_out(request: HttpRequest) -> HttpResponse:
    logout(request)
    return redirect("/")


@require_GET
def asset(request: HttpRequest, name: str) -> HttpResponse:
    try:
        body, media_type = page.asset(name)
    except KeyError:
        raise Http404 from None
    return HttpResponse(body, content_type=media_type)


def _user(request: HttpRequest) -> str | None:
    user = request.user
    return user.get_username() if user.is_authenticated else None


def _shelves() -> list[page.Shelf]:
    products = models.Product.objects.exclude(sku__startswith=models.RACE).order_by("sku")
    return [page.Shelf(p.sku, p.title, p.stock) for p in products]


def _ordered(request: HttpRequest, order: Order) -> HttpResponse:
    if request.accepts("text/html"):
        return HttpResponse(page.ordered(order), status=201)
    return JsonResponse(shown(order), status=201)


def _refused(request: HttpRequest, reason: str, code: int) -> HttpResponse:
    if request.accepts("text/html"):
        return HttpResponse(page.refused(reason), status=code)
    return JsonResponse({"refused": reason}, status=code)
