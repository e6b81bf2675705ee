"""The logger ``lockkit``. It is fetched at the first message: ``logging`` is slow to import."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logging import Logger


class _Log:
    def __getattr__(self, name: str) -> Any:
        import logging

        found = self.__dict__[name] = getattr(logging.getLogger("lockkit"), name)
        return found


log: Logger = _Log()  # type: ignore[assignment]


def log_error(text: str, *values: object) -> None:
    """Log the error that is being handled, where nobody catches another one: a filter of the
    application may raise, and the work of a thread must go on."""
    with suppress(Exception):
        log.exception(text, *values, stacklevel=2)  # noqa: LOG004  one is being handled
