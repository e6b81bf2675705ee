"""Which functions answer a request, below the callback that the URL leads to.

The callback of a class view, of DRF's ``@api_view`` and of Django Ninja hides them, and with them
the marks of their decorators. Nothing of DRF or Ninja is imported to look into theirs.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

__all__ = ["class_of", "handlers", "is_operation", "ninja_operation", "show_types"]

API_VIEW = "rest_framework.decorators"
NINJA = "ninja.operation"


def handlers(view: Any, method: str | None) -> Iterator[Any]:
    """The functions that answer this HTTP method, the outermost first, without the callback."""
    operation = ninja_operation(view, method)
    if operation is not None:
        yield operation.run  # decorate_view wraps it
        yield operation.view_func
    cls = class_of(view)
    if cls is None or method is None:
        return
    name = (getattr(view, "actions", None) or {}).get(method.lower(), method.lower())
    for handler in (getattr(cls, "dispatch", None), getattr(cls, name, None)):
        if handler is not None:
            yield handler
            if _module_of(handler) == API_VIEW:
                yield from _captured(handler, "func")


def class_of(view: Any) -> Any:
    """The class of a callback that ``as_view`` has made, of DRF's or Django's."""
    return getattr(view, "cls", None) or getattr(view, "view_class", None)


def ninja_operation(view: Any, method: str | None) -> Any | None:
    """Django Ninja's operation for this HTTP method; None: it is no view of Ninja's."""
    if method is None or _module_of(view) != NINJA:
        return None
    for path_view in _captured(view, "self"):
        for operation in path_view.operations:
            if method in operation.methods:
                return operation
    return None


def is_operation(view: Any) -> bool:
    """Whether it is what Ninja's ``decorate_view`` hands to decorators: it authenticates inside."""
    owner = getattr(view, "__self__", None)
    return any(base.__module__ == NINJA for base in type(owner).__mro__)


def show_types(wrapper: Any, view: Any) -> None:
    """Let Ninja read the parameters' types through a decorator.

    It looks the names of types up in the module of the function that it is given.
    """
    with suppress(Exception):  # annotations of others: types that only checkers import
        wrapper.__signature__ = inspect.signature(view, eval_str=True)


def _module_of(function: Any) -> str | None:
    name: str | None = getattr(function, "__globals__", {}).get("__name__")
    return name


def _captured(function: Any, name: str) -> Iterator[Any]:
    """The value of a variable in a function's closure: neither library shows it otherwise."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=False))
    if name in cells:
        yield cells[name].cell_contents
