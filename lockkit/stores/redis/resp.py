"""Replies of RESP 2, as they come in pieces."""

from __future__ import annotations

from typing import Any, Final

from redis.exceptions import NoPermissionError, NoScriptError, ResponseError

MISSING: Final = object()
"""The rest of a reply has not come yet."""

END = b"\r\n"


class Replies:
    """Feed it what comes; take whole replies. Error replies are values."""

    def __init__(self) -> None:
        self._text = bytearray()
        self._at = 0

    def feed(self, data: bytes) -> list[Any]:
        """The replies that are whole now. Raises ValueError if it is not RESP."""
        self._text += data
        found = []
        while self._at < len(self._text):
            start = self._at
            reply = self._reply()
            if reply is MISSING:
                self._at = start
                break
            found.append(reply)
        del self._text[: self._at]
        self._at = 0
        return found

    def _reply(self) -> Any:
        end = self._text.find(END, self._at)
        if end < 0:
            return MISSING
        kind, line = self._text[self._at], bytes(self._text[self._at + 1 : end])
        self._at = end + 2
        if kind == 36:  # noqa: PLR2004  $
            return self._bulk(int(line))
        if kind == 58:  # noqa: PLR2004  :
            return int(line)
        if kind == 43:  # noqa: PLR2004  +
            return line
        if kind == 45:  # noqa: PLR2004  -
            return _error(line.decode(errors="replace"))
        if kind == 42:  # noqa: PLR2004  *
            return self._array(int(line))
        raise ValueError(f"not a reply: {kind:c}")

    def _bulk(self, length: int) -> Any:
        if length < 0:
            return None
        start, self._at = self._at, self._at + length + 2
        if self._at > len(self._text):
            return MISSING
        return bytes(self._text[start : start + length])

    def _array(self, length: int) -> Any:
        if length < 0:
            return None
        found = []
        for _ in range(length):
            reply = self._reply()
            if reply is MISSING:
                return MISSING
            found.append(reply)
        return found


def _error(message: str) -> ResponseError:
    if message.startswith("NOSCRIPT"):
        return NoScriptError(message)
    if message.startswith("NOPERM"):
        return NoPermissionError(message)
    return ResponseError(message.removeprefix("ERR "))
