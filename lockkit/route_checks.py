"""What can be known before the first request of how routes and settings go together.

An adapter describes its routes, and shows what is found: Django as system checks, Flask by
``flask locks check`` and in the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from lockkit.naming import Field

if TYPE_CHECKING:
    from lockkit.views import Guard

__all__ = ["Finding", "Route", "field_findings"]

SENT = ("json", "form", "query", "header")
"""Sources in which a client chooses the text."""


class Route(NamedTuple):
    """One way to a view with ``@lock_view``."""

    view: str  #: as people call it
    shown: str
    guards: tuple[Guard, ...]
    parameters: Mapping[str, bool]  #: of the URL: whether a client chooses the text


class Finding(NamedTuple):
    code: str  #: for adapters, which know how grave it is
    text: str
    remedy: str


def field_findings(routes: Iterable[Route]) -> Iterator[Finding]:
    """Fields that a route does not have, and texts of which nothing says what they stand for."""
    found = [each for route in routes for each in _of_route(route)]
    yield from dict.fromkeys(found)  # a view may have several routes


def _of_route(route: Route) -> Iterator[Finding]:
    templates = [template for guard in route.guards for template in guard.templates]
    for field in (field for template in templates for field in template.fields):
        if field.source == "kwargs" and field.path[0] not in route.parameters:
            yield _missing(field, route)
        elif not field.conversion and _is_text(field, route.parameters):
            yield _unconverted(field, route)


def _is_text(field: Field, parameters: Mapping[str, bool]) -> bool:
    return field.source in SENT or (field.source == "kwargs" and parameters[field.path[0]])


def _missing(field: Field, route: Route) -> Finding:
    has = ", ".join(f"{{{name}}}" for name in route.parameters) or "no parameters"
    return Finding(
        "missing-field",
        f"{route.view} has lock_view with {field}, and its route {route.shown!r} has {has}",
        "Correct the template or the route: each request would be an error.",
    )


def _unconverted(field: Field, route: Route) -> Finding:
    as_ = field.text
    return Finding(
        "bare-field",
        f"{route.view} has lock_view with {field}, a text that the client chooses: '1', '01' and "
        f"' 1' are three locks, and one row where the column is a number",
        f"Say what it stands for: {{{as_}:int}}, {{{as_}:uuid}}, or {{{as_}:lower}} where upper "
        f"and lower case are the same; {{{as_}:str}} if each text is a thing of its own.",
    )
