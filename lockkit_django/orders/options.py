"""What ``@idempotent`` says about one view, and where its order is opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lockkit.idempotency import IdSource

__all__ = ["ATTRIBUTE", "DEFAULTS", "RecordAliases", "ViewOptions", "options_of"]

ATTRIBUTE = "_lockkit_idempotent"


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """Overrides of LOCKKIT_ORDERS for one view; None: as the settings say."""

    sources: tuple[IdSource, ...] | None = None
    required: bool | None = None
    using: str | None = None
    exempt: bool = False
    inside: bool = False  #: the view opens its order itself, below its own checks


DEFAULTS = ViewOptions()


def options_of(callback: Callable[..., Any]) -> ViewOptions:
    """The options of a view: on the function, or on the class it was made from."""
    for holder in (callback, getattr(callback, "cls", None), getattr(callback, "view_class", None)):
        options = getattr(holder, ATTRIBUTE, None)
        if isinstance(options, ViewOptions):
            return options
    return DEFAULTS


class RecordAliases(set[str]):
    """For ``_non_atomic_requests`` of a view whose order is opened inside it.

    Django's block for that database would be around ours and end before it. Which database it is
    is not known while modules are imported.
    """

    def __init__(self, using: str | None, others: set[str]) -> None:
        super().__init__(others)
        self._using = using

    def __contains__(self, alias: object) -> bool:
        from lockkit_django.orders.gate import store_for

        return super().__contains__(alias) or alias == store_for(self._using).using
