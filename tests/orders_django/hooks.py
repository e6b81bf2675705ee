"""Hooks of LOCKKIT_ORDERS."""

from __future__ import annotations

from django.http import HttpRequest


def yes(request: HttpRequest) -> bool:
    return True


def no(request: HttpRequest) -> bool:
    return False


def cart(request: HttpRequest) -> str | None:
    return request.headers.get("X-Cart")


def tenant(request: HttpRequest) -> str | None:
    return request.headers.get("X-Tenant")
