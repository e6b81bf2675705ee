"""The visitor's session around an order: a cart that is emptied for an order comes back with it."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

from lockkit_django.orders.identity import in_signed_cookies

if TYPE_CHECKING:
    from django.http import HttpRequest

__all__ = ["SessionBefore"]

DATA = "_session_cache"
"""Of a session that was loaded."""


class SessionBefore:
    """What the session of a request was before its view.

    Guarantee: after ``restore`` it is that again. Limit: what the view itself has saved, in a
    store that is not the order's database, stays there.
    """

    def __init__(self, request: HttpRequest) -> None:
        self._session: Any = getattr(request, "session", None)
        if self._session is not None:
            self._key = self._session.session_key
            self._modified = self._session.modified
            self._data = deepcopy(vars(self._session).get(DATA))

    def restore(self) -> None:
        """Queries the store only if the view has given the session another key."""
        session = self._session
        if session is None or not self._is_undone():
            return
        vars(session).pop(DATA, None)
        if self._data is not None:
            setattr(session, DATA, self._data)
        session._session_key = self._key
        session.modified = self._modified

    def _is_undone(self) -> bool:
        """Whether a login or a logout of the view's was rolled back with its order."""
        session = self._session
        if session.session_key == self._key or in_signed_cookies(type(session)):
            return True
        if self._key is None:
            return not session.exists(session.session_key)
        return bool(session.exists(self._key))
