"""``@idempotent``: its arguments, and what it refuses, in every framework."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar, overload

from lockkit.model.checks import Check, check_flag, check_text, optional
from lockkit.model.errors import ConfigurationError
from lockkit.model.options import check_options
from lockkit.orders.order import IdSource
from lockkit.orders.visit import OPTIONS, ViewOptions

V = TypeVar("V", bound=Callable[..., Any])

CHECKS: dict[str, Check] = {
    "required": optional(check_flag),
    "using": optional(check_text),
    "atomic": check_flag,
}
"""For each option but ``order_id``."""


def ordered_by(
    where: str, known: Iterable[str], /, order_id: str | None = None, **options: Any
) -> ViewOptions:
    """The options that the arguments of ``@idempotent`` make. Raises ConfigurationError for a wrong
    one, and for one that is not ``known``."""
    check_options(where, options, known)
    for option, value in options.items():
        CHECKS[option](f"{option} of {where}", value)
    sources = None if order_id is None else (IdSource.parse(order_id, where=where),)
    return ViewOptions(sources=sources, inside=True, **options)


class Idempotent:
    """The decorator ``idempotent``, and ``idempotent.exempt``.

    ``wrap`` makes the requests of a view orders. ``known``: the options of this framework.
    ``in_class``: the remedy, for the error if a class is decorated; ``{}`` stands for its name.
    """

    def __init__(
        self, wrap: Callable[[Any, ViewOptions], Any], known: Iterable[str], *, in_class: str
    ) -> None:
        self._wrap, self._known, self._in_class = wrap, known, in_class

    @overload
    def __call__(self, view: V, /) -> V: ...

    @overload
    def __call__(
        self,
        *,
        order_id: str | None = None,
        required: bool | None = None,
        using: str | None = None,
        atomic: bool = True,
    ) -> Callable[[V], V]: ...

    def __call__(self, view: Any = None, /, **given: Any) -> Any:  # type: ignore[misc]
        """Make each request of this view that has an order ID an order, whatever PATHS and METHODS
        say, but not GET, HEAD, OPTIONS and TRACE. Guarantee and limit: see ``lockkit.orders``.

        Put it below the view's own checks, such as ``@permission_required``: then they run before
        any answer is repeated. Raises ConfigurationError at import for a wrong argument.

        ``order_id``: where to look for the order ID, such as "json:order_id", instead of ORDER_ID.
        ``required``: True refuses a request without an order ID with 400. ``using``: the database
        of the order, in Flask its bind key. ``atomic=False``, in Django only: the view commits
        itself, in ``request.order.commit_in(…)``.
        """
        options = ordered_by("@idempotent", self._known, **given)
        if view is None:
            return lambda v: self._inside(v, options)
        return self._inside(view, options)

    @staticmethod
    def exempt(view: V, /) -> V:
        """Never make this view's requests orders, whatever the settings say."""
        setattr(view, OPTIONS, ViewOptions(exempt=True))
        return view

    def _inside(self, view: Any, options: ViewOptions) -> Any:
        if not callable(view):
            raise ConfigurationError(f"write @idempotent(order_id={view!r})")
        if isinstance(view, type):
            raise ConfigurationError(
                f"@idempotent is for functions and methods; {self._in_class.format(view.__name__)}"
            )
        options = options._replace(below=view)
        wrapper = self._wrap(view, options)
        setattr(wrapper, OPTIONS, options)
        return wrapper
