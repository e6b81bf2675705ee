"""What a URL and OPTIONS say about sessions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode

from lockkit.model.checks import Unshown, check_flag, check_password, wrong
from lockkit.model.errors import ConfigurationError
from lockkit.stores.contract import reject_unknown_options

if TYPE_CHECKING:
    from lockkit.model.settings import AliasSettings

OURS = ("mode", "max_sessions")
OPTIONS = (*OURS, "password", "session_pooler")

MAX_SESSIONS = 20

IDLE_SECONDS, ASKING_SECONDS, QUESTIONS = 10, 5, 3
"""TCP keep-alive: the seconds of silence before the kernel asks whether the server is still there,
the seconds between two questions, and how many are asked. A network may forget a silent connection
without notice, and a claim that waits in the server's queue sends nothing."""


Arguments = Callable[[], Mapping[str, Any]]
"""Returns the driver's arguments. Called for each new connection, as a password may change."""


class Said(NamedTuple):
    """What a URL and OPTIONS say."""

    url: str  #: for the driver: without lockkit's own options
    mode: str
    max_sessions: int
    password: str | Callable[[], str] | None
    session_pooler: bool

    def key(self) -> Hashable:
        """Equal for clients that share their sessions. If the password is a function, it must be
        the same function."""
        try:
            hash(self)
        except TypeError:  # the password is an object without a hash
            return id(self.password), self._replace(password=None)
        return self

    def __repr__(self) -> str:
        """Without the URL and the password, which may be secret."""
        return f"Said({self.mode!r}, max_sessions={self.max_sessions})"


def said(settings: AliasSettings) -> Said:
    options = {**reject_unknown_options(settings, OPTIONS)}
    where, _, query = settings.location.partition("?")
    rest = []
    for key, value in parse_qsl(query, keep_blank_values=True):
        if key not in OURS:
            rest.append((key, value))
        elif key in options:
            raise ConfigurationError(
                f"{settings.place} and its OPTIONS both say {key!r}: say it in one of them"
            )
        else:
            options[key] = int(value) if value.isdecimal() else Unshown(value)
    url = f"{where}?{urlencode(rest, quote_via=quote)}" if rest else where
    most = options.get("max_sessions", MAX_SESSIONS)
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise wrong(f"max_sessions of {settings.title}", most, "1 or more")
    where = f"OPTIONS['session_pooler'] of {settings.title}"
    pooler = check_flag(where, options.get("session_pooler", False))
    if (password := options.get("password")) is not None:
        check_password(f"OPTIONS['password'] of {settings.title}", password)
    return Said(url, str(options.get("mode")), most, password, pooler)
