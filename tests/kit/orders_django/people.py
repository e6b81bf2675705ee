"""Views beside the shop: which user a browser has, and what that user may do."""

from __future__ import annotations

import os
import socket

from asgiref.sync import sync_to_async
from django.contrib.auth import login, logout
from django.contrib.auth.models import Permission, User
from django.contrib.contenttypes.models import ContentType
from django.http import HttpRequest, HttpResponse

from orders_django.views import sell


def sign_in(request: HttpRequest, name: str) -> HttpResponse:
    login(request, User.objects.get_or_create(username=name)[0])
    return HttpResponse()


def sign_out(request: HttpRequest) -> HttpResponse:
    logout(request)
    return HttpResponse()


def permit(request: HttpRequest, name: str, may: int) -> HttpResponse:
    """Give or take the permission to sell."""
    user = User.objects.get_or_create(username=name)[0]
    (user.user_permissions.add if may else user.user_permissions.remove)(to_sell())
    return HttpResponse()


def to_sell() -> Permission:
    """The permission."""
    kind = ContentType.objects.get_or_create(app_label="shop", model="sale")[0]
    return Permission.objects.get_or_create(codename="add_sale", content_type=kind)[0]


def guest(request: HttpRequest) -> HttpResponse:
    """A session of a visitor whom nobody knows."""
    request.session["basket"] = 1
    return HttpResponse()


def gated(request: HttpRequest) -> HttpResponse:
    """Tells the test that it runs, and goes on when the test says so."""
    number = sell("gated")
    with socket.create_connection(("127.0.0.1", int(os.environ["ORDERS_GATE"])), 60) as gate:
        gate.sendall(b"in")
        gate.recv(1)
    return HttpResponse(f"sold {number}", status=201)


async def async_gated(request: HttpRequest) -> HttpResponse:
    return await sync_to_async(gated)(request)
