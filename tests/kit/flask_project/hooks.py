"""Hooks of settings, and a check. Tests only."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from flask import abort, request

if TYPE_CHECKING:
    from collections.abc import Callable

    from flask import Request


def of_header(request: Request) -> str | None:
    return request.headers.get("X-Part")


def may_see_again(request: Request) -> bool:
    return "X-Revoked" not in request.headers


def permission_required(view: Callable[..., Any]) -> Callable[..., Any]:
    """As Flask's extensions have it."""

    @functools.wraps(view)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if not may_see_again(request):
            abort(403)
        return view(*args, **kwargs)

    return checked
