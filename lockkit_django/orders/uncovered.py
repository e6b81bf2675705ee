"""Forms with an order ID whose view is no order: an error in the log, after the view."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockkit.orders.uncovered import tell_uncovered
from lockkit.web.view_lock import request_label
from lockkit_django.orders.rules import form_ids

if TYPE_CHECKING:
    from django.http import HttpRequest

__all__ = ["note_uncovered", "tell_if_uncovered"]

UNCOVERED = "_lockkit_uncovered"


def note_uncovered(request: HttpRequest) -> None:
    """The view of this request is no order."""
    setattr(request, UNCOVERED, True)


def tell_if_uncovered(request: HttpRequest) -> None:
    """Looks at what Django keeps of a request once it was read, and has nothing read."""
    if not hasattr(request, UNCOVERED):
        return
    kept: dict[str, Any] = vars(request)
    form = kept.get("_post")
    values = [value for _, each in form.lists() for value in each] if form else []
    label = request_label(request.method or "", request.path)
    tell_uncovered(form_ids(), label, values, kept.get("_body", b""))
