"""The visitor's session around an order: a cart that is emptied for an order comes back with it."""

from __future__ import annotations

from copy import deepcopy

from flask import session

__all__ = ["SessionBefore"]


class SessionBefore:
    """What the session of the current request was before its view.

    Guarantee: after ``restore`` it is that again. Limit: what the view itself has saved, with a
    server-side session's own methods, stays there.
    """

    def __init__(self) -> None:
        self._data = deepcopy(dict(session))
        self._modified = session.modified
        self._is_over = False

    def restore(self) -> None:
        """Once: what an error handler puts into the session after it stays."""
        if not self._is_over and dict(session) != self._data:
            session.clear()
            session.update(self._data)
            session.modified = self._modified
        self._is_over = True
