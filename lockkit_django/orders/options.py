"""What ``@idempotent`` says about one view, and where its order is opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lockkit.orders.orderid import IdSource
from lockkit_django.web.view_functions import class_of, handlers

__all__ = ["ATTRIBUTE", "DEFAULTS", "ViewOptions", "options_of"]

ATTRIBUTE = "_lockkit_idempotent"


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """Overrides of LOCKKIT_ORDERS for one view; None: as the settings say."""

    sources: tuple[IdSource, ...] | None = None
    required: bool | None = None
    using: str | None = None
    atomic: bool = True  #: the order's own transaction is around the view
    exempt: bool = False
    inside: bool = False  #: the view opens its order itself, below its own checks


DEFAULTS = ViewOptions()


def options_of(callback: Callable[..., Any], method: str | None = None) -> ViewOptions:
    """The options of a view: on the callback, its class, or what answers this HTTP method."""
    for holder in (callback, class_of(callback), *handlers(callback, method)):
        options = getattr(holder, ATTRIBUTE, None)
        if isinstance(options, ViewOptions):
            return options
    return DEFAULTS
