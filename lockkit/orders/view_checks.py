"""Finds views that may have checks, which a stored answer would bypass.

A stored answer is given only where the checks of the view have passed: below them, on a view that
has none, or where AUTHORIZE_REPLAY allows it. A view has none if it is a plain function, or a class
whose bases are the framework's own, under known wrappers only. Everything else is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from inspect import isroutine
from typing import Any

from lockkit.web.route_checks import Finding

Test = Callable[[Any], bool]


def wrappers(view: Any) -> Iterator[Any]:
    """A view, and each function that it wraps by ``functools.wraps``; the outermost first."""
    yield view
    while (view := getattr(view, "__wrapped__", None)) is not None:
        yield view


def unknown_wrapper(view: Any, is_known: Test, is_plain: Test = isroutine) -> str | None:
    """The name of a wrapper or function that may be a check; None if there is none."""
    *around, function = wrappers(view)
    unknown = [each for each in around if not is_known(each)]
    unknown += [] if is_plain(function) else [function]
    return _name_of(unknown[0]) if unknown else None


def unknown_in_class(view: type, own: Collection[str], entries: Collection[str]) -> str | None:
    """The name of a base or method that may check; None if there is none.

    ``own``: the framework's modules and packages. ``entries``: methods that run before that of
    HTTP.
    """
    for each in view.__mro__[:-1]:
        if any(f"{each.__module__}.".startswith(f"{package}.") for package in own):
            continue
        if each is not view:
            return f"{each.__module__}.{each.__qualname__}"
        for name in sorted(vars(view).keys() & entries):
            return f"{view.__qualname__}.{name}"
    return None


def module_of(function: Any) -> str:
    """The module of the code: a wrapper has the ``__module__`` of the function that it wraps."""
    return str(getattr(function, "__globals__", {}).get("__name__", ""))


def unknown_finding(view: str, route: str, check: str, line: str) -> Finding:
    """``check``: the part that may be a check. ``line``: the line to add to the view, and where."""
    return Finding(
        "replay-unknown",
        f"{view} at {route!r} has {check}, which may check who asks: so no answer of its orders "
        f"is repeated, and a duplicate gets 409 order-completed",
        f"{line}; or set LOCKKIT_ORDERS['AUTHORIZE_REPLAY'].",
    )


def _name_of(layer: Any) -> str:
    code = getattr(layer, "__code__", None)
    name = type(layer).__qualname__ if code is None else code.co_qualname
    return f"{module_of(layer) or type(layer).__module__}.{name.partition('.<locals>')[0]}"
