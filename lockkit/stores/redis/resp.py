"""Replies of RESP 2, as they come in pieces."""

from __future__ import annotations

from typing import Any

from redis.exceptions import NoPermissionError, NoScriptError, ResponseError

END = b"\r\n"

ALONE = 0
"""The number of replies to one request that is not in a list."""


class _Unfinished(Exception):
    """The rest of a reply has not come yet."""


class Replies:
    """Feed it what comes; take whole replies. Error replies are values."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Any]:
        """The replies that are whole now. Raises ValueError if it is not RESP."""
        text = self._rest + data
        at, found = 0, []
        try:
            while at < len(text):
                reply, at = _reply(text, at)
                found.append(reply)
        except _Unfinished:
            pass
        self._rest = text[at:]
        return found


def _reply(text: bytes, at: int) -> tuple[Any, int]:
    """The reply that begins there, and where it ends."""
    end = text.find(END, at)
    if end < 0:
        raise _Unfinished
    kind, line, at = text[at], text[at + 1 : end], end + 2
    if kind == 43:  # noqa: PLR2004  +
        return line, at
    if kind == 58:  # noqa: PLR2004  :
        return int(line), at
    if kind == 36:  # noqa: PLR2004  $
        return _bulk(text, at, int(line))
    if kind == 45:  # noqa: PLR2004  -
        return _error(line.decode(errors="replace")), at
    if kind == 42:  # noqa: PLR2004  *
        return _array(text, at, int(line))
    if kind == 95:  # noqa: PLR2004  _ of RESP 3, which somebody else's pool may speak
        return None, at
    raise ValueError(f"not a reply: {kind:c}")


def _bulk(text: bytes, at: int, length: int) -> tuple[bytes | None, int]:
    if length < 0:
        return None, at
    if at + length + 2 > len(text):
        raise _Unfinished
    return text[at : at + length], at + length + 2


def _array(text: bytes, at: int, length: int) -> tuple[list[Any] | None, int]:
    if length < 0:
        return None, at
    found = []
    for _ in range(length):
        reply, at = _reply(text, at)
        found.append(reply)
    return found, at


def _error(message: str) -> ResponseError:
    if message.startswith("NOSCRIPT"):
        return NoScriptError(message)
    if message.startswith("NOPERM"):
        return NoPermissionError(message)
    return ResponseError(message.removeprefix("ERR "))
