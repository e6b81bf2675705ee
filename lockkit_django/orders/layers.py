"""The decorators around a view, and which of them are known to refuse nobody.

Only what leads to the function below it (``__wrapped__``) can be seen. A decorator that is not
known may be a check, and what it would say cannot be asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from django.db.transaction import Atomic

__all__ = [
    "is_callback",
    "is_harmless",
    "is_the_frameworks",
    "login_test",
    "name_of",
    "unwrapped",
]

LOGIN = "django.contrib.auth.decorators"
DECORATORS = "django.utils.decorators"
ORDERED = "lockkit_django.orders.ordered_view"
CALLBACKS = frozenset({"django.views.generic.base", "rest_framework.viewsets"})
HARMLESS = frozenset(
    {
        "django.views.decorators.cache",
        "django.views.decorators.clickjacking",
        "django.views.decorators.common",
        "django.views.decorators.csrf",
        "django.views.decorators.debug",
        "django.views.decorators.http",  # the stored response was made for the same method
        "django.views.decorators.vary",
        "lockkit_django.locked_view",
        ORDERED,
    }
)
HARMLESS_MIDDLEWARE = frozenset(
    {
        "django.middleware.cache",
        "django.middleware.gzip",
        "django.middleware.http",
        "django.views.decorators.csrf",  # those that make a token, and do not compare it
    }
)
CSRF = "django.middleware.csrf"

FRAMEWORKS = {
    "dispatch": {"django.views.generic.base", "django.contrib.auth.mixins", "rest_framework.views"},
    "initial": {"rest_framework.views", "lockkit_django.orders.views"},
    "setup": {"django.views.generic.base"},
}
"""Where the methods are defined whose checks ``authorize`` makes itself."""


def unwrapped(function: Any) -> tuple[list[Any], Any]:
    """The decorators around a function, the outermost first, and the function.

    Without those above ``@idempotent``: they have passed when it is asked.
    """
    found: list[Any] = []
    while (inner := _inner(function)) is not None:
        found += _decorators(function)
        function = inner
    ordered = [i for i, layer in enumerate(found) if _module(layer) == ORDERED]
    return found[ordered[-1] + 1 :] if ordered else found, function


def is_callback(function: Any) -> bool:
    """Whether it is what ``as_view`` has made: it may look like a decorated ``dispatch``."""
    return _module(function) in CALLBACKS and _code_name(function) == "view"


def login_test(layer: Any) -> Callable[[Any], Any] | None:
    """The test of ``user_passes_test`` and its kin: Django does not show it in any other way."""
    test: Callable[[Any], Any] | None = _cells(layer).get("test_func")
    return test if _module(layer) == LOGIN else None


def is_harmless(layer: Any, request: Any) -> bool:
    """Whether this decorator refuses no request whose method was answered before."""
    module = _module(layer)
    if module == "contextlib":
        return isinstance(_cells(layer).get("self"), Atomic)
    if module == DECORATORS:
        made_of = type(_cells(_cells(layer).get("_pre_process_request")).get("middleware"))
        if made_of.__module__ == CSRF:
            return bool(getattr(request, "csrf_processing_done", False))
        return made_of.__module__ in HARMLESS_MIDDLEWARE
    return module in HARMLESS


def is_the_frameworks(cls: type[Any], name: str, request: Any) -> bool:
    """Whether no class of the project's has a method of this name, but for harmless decorators."""
    for base in cls.__mro__:
        method = vars(base).get(name)
        if method is None:
            continue
        found, function = unwrapped(method)
        if _module(function) not in FRAMEWORKS[name]:
            return False
        if not all(is_harmless(layer, request) for layer in found):
            return False
    return True


def name_of(layer: Any) -> str:
    """For people: the decorator that has made this layer."""
    code = getattr(layer, "__code__", None)
    if code is None:
        return type(layer).__qualname__
    return f"{_module(layer)}.{code.co_qualname.partition('.<locals>')[0]}"


def _inner(function: Any) -> Any | None:
    if is_callback(function):
        return None
    inner = getattr(function, "__wrapped__", None)
    return function.func if inner is None and isinstance(function, partial) else inner


def _decorators(layer: Any) -> Iterator[Any]:
    """``method_decorator`` keeps decorators for later: they are tried on a function of ours."""
    if isinstance(layer, partial):
        return  # what a decorator of methods is given
    decorators = _cells(layer).get("decorators")
    if _module(layer) != DECORATORS or decorators is None:
        yield layer
        return
    for decorate in reversed(list(decorators)):
        yield from _made_by(decorate)


def _made_by(decorate: Callable[[Any], Any]) -> Iterator[Any]:
    def view(*args: Any, **kwargs: Any) -> None:
        """In the place of a view."""

    layer = decorate(view)
    while layer is not view and layer is not None:
        yield layer
        layer = _inner(layer)


def _cells(function: Any) -> dict[str, Any]:
    """The variables in a function's closure."""
    code = getattr(function, "__code__", None)
    names = () if code is None else code.co_freevars
    cells = zip(names, getattr(function, "__closure__", None) or (), strict=False)
    return {name: cell.cell_contents for name, cell in cells}


def _module(function: Any) -> str:
    """Where its code is: decorators copy ``__module__`` from what they decorate."""
    return str(getattr(function, "__globals__", {}).get("__name__", ""))


def _code_name(function: Any) -> str:
    return str(getattr(getattr(function, "__code__", None), "co_name", ""))
