"""Decorators as wrapt makes them."""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Transparent:
    """A view with a check before it. Whatever is read from it is read from the view below, even its
    class, its ``__globals__`` and its ``__dict__``."""

    __slots__ = ("__wrapped__", "_check")

    def __init__(self, view: Callable[..., Any], check: Callable[[], object]) -> None:
        object.__setattr__(self, "__wrapped__", view)
        object.__setattr__(self, "_check", check)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self.__wrapped__)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.__wrapped__, name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._check()
        return self.__wrapped__(*args, **kwargs)


class Measured(Transparent):
    """A view as an agent wraps it: Datadog's and New Relic's use wrapt's FunctionWrapper, whose
    class has a field for the agent's function. ``by``: the module of this function."""

    __slots__ = ("_self_wrapper",)

    def __init__(
        self, view: Callable[..., Any], by: str = "ddtrace.contrib.internal.trace_utils"
    ) -> None:
        super().__init__(view, lambda: None)
        object.__setattr__(self, "_self_wrapper", FunctionType(_measure.__code__, {"__name__": by}))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._self_wrapper(self.__wrapped__, None, args, kwargs)


def _measure(
    wrapped: Callable[..., Any], _instance: object, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    return wrapped(*args, **kwargs)
