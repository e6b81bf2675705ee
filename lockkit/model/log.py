"""The logger ``lockkit``. It is fetched at the first message: ``logging`` is slow to import."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logging import Logger


class _Log:
    def __getattr__(self, name: str) -> Any:
        import logging

        found = self.__dict__[name] = getattr(logging.getLogger("lockkit"), name)
        return found


log: Logger = _Log()  # type: ignore[assignment]
