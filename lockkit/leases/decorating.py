"""Mistakes in the use of a decorator, found before the first call."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, FrameType, FunctionType

from lockkit.model.errors import ConfigurationError

TASKS = ("apply_async", "call_local", "send_with_options", "enqueue", "make_context")
"""Methods of a task of Celery, Huey, Dramatiq and Django, and of a command of Click."""


def refuse_bare(decorator: str, name: object, example: str = "stock:{sku}") -> None:
    """Raise ConfigurationError for ``@decorator`` without parentheses: ``name`` is the function.

    The decorator itself must call this, because it looks at the frame of its caller's caller. A
    callable that makes names is not taken for the function: it is a lambda, or defined elsewhere.
    """
    if is_written_above(name, sys._getframe(2)):
        raise ConfigurationError(
            f"@{decorator} needs the name of a lock: write @{decorator}({example!r})"
        )


def refuse_task(decorator: str, function: object) -> None:
    """Raise ConfigurationError for a task or command: it is registered, and runs, undecorated.

    Its class shows it. RQ needs no check: its workers import a function by its name, decorated.
    """
    refuse_operation(decorator, function)
    kind = function.__class__  # a lazy task of Celery shows the real class here
    if any(hasattr(kind, method) for method in TASKS):
        raise ConfigurationError(
            f"@{decorator} stands above the decorator that makes a {kind.__name__} of the "
            f"function, and would be left out when that is run: put @{decorator} directly above "
            "the function, below @app.task and its like"
        )


def refuse_operation(decorator: str, function: object) -> None:
    """Raise ConfigurationError for an operation of Django Ninja, which runs undecorated.

    ``@api.post`` returns the function itself, with this mark.
    """
    if "_ninja_operation" in getattr(function, "__dict__", ()):
        raise ConfigurationError(
            f"@{decorator} stands above the decorator that makes an operation of the function, and "
            f"would do nothing: put @{decorator} below @api.post and its like"
        )


def is_written_above(function: object, frame: FrameType) -> bool:
    """Whether ``frame`` is at a decorator that stands above the ``def`` of this function."""
    code = _code(function)
    if code is None or code.co_name == "<lambda>":
        return False
    return any(constant is code for constant in _decorated(frame))


def made_below(frame: FrameType) -> list[CodeType]:
    """The code of the ``def`` at whose decorators ``frame`` is; none if it is at no decorator. What
    a decorator gets may be another function, which others have made of that."""
    return [code for code in _decorated(frame) if not code.co_name.startswith("<")]


def _decorated(frame: FrameType) -> Iterator[CodeType]:
    """The code in whose lines ``frame`` is: it only makes it, so it is at one of its decorators."""
    for code in frame.f_code.co_consts:
        if isinstance(code, CodeType):
            last = max(line or 0 for _, _, line in code.co_lines())
            if code.co_firstlineno <= frame.f_lineno <= last:
                yield code


def _code(function: object) -> CodeType | None:
    """The code of the function below decorators that use ``functools.wraps``."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function.__code__ if isinstance(function, FunctionType) else None
