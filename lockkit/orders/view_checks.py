"""Finds views that may have checks, which a stored answer would bypass.

A stored answer is given only if the view's checks have passed, if the view has none, or if
AUTHORIZE_REPLAY allows it. A view has none if it is a plain function, or a class whose bases are
all the framework's own, and all its wrappers are known. Everything else may be a check.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from types import FunctionType, MethodType
from typing import Any

from lockkit.web.route_checks import is_measured, module_of, wrappers

Test = Callable[[Any], object]


def unknown_wrapper(views: Iterable[Any], is_known: Test, is_plain: Test) -> str | None:
    """The name of a wrapper or function that may be a check; None if there is none."""
    for view in views:
        *around, function = (layer for layer in wrappers(view) if not is_measured(layer))
        for each in (*around, function):
            if each is function:
                if not is_plain(each):
                    return _name_of(each, "what {} holds")
            elif not is_known(each):
                return _name_of(each, "{}")
    return None


def unknown_in_class(view: type, own: Collection[str], entries: Collection[str]) -> str | None:
    """The name of a base or method that may check; None if there is none.

    ``own``: the framework's modules and packages. ``entries``: methods that run before the
    handler of the HTTP method.
    """
    for each in view.__mro__[:-1]:
        if any(f"{each.__module__}.".startswith(f"{package}.") for package in own):
            continue
        if each is not view:
            return f"{each.__module__}.{each.__qualname__}"
        for name in sorted(vars(view).keys() & entries):
            return f"{view.__qualname__}.{name}"
    return None


def _name_of(layer: Any, inside: str) -> str:
    """For people. A function's own name tells more than the one that ``functools.wraps`` copies.
    ``inside``: what is said of a function inside another, which a decorator is, or a factory."""
    function = layer.__func__ if type(layer) is MethodType else layer
    if type(function) is FunctionType:
        *outer, name = function.__code__.co_qualname.split(".<locals>.")
        whole = f"{module_of(function)}.{'.'.join(outer) or name}"
        return inside.format(whole) if outer else whole
    return f"{type(layer).__module__}.{type(layer).__qualname__}"
