"""Replies of RESP 2, as they come in pieces."""

from __future__ import annotations

from typing import Any

from redis.exceptions import NoPermissionError, NoScriptError, ResponseError

END = b"\r\n"

VERBATIM, MAP, NULL, PUSH = b"=%_>"
"""Types of RESP 3, which a connection of somebody else's pool may send. A map is read as a list. A
push does not answer a request, and is dropped: pools of redis-py ask for some since 8.0."""

ALONE = 0
"""In place of a number of replies: there is one, and it is returned without a list."""


class Replies:
    """Feed it what comes; take whole replies. Error replies are values. An element that was read is
    not read again, however long a reply is and however many pieces it comes in."""

    def __init__(self) -> None:
        self._rest = b""
        self._begun: list[tuple[int, list[Any], int]] = []  #: how long lists are to be; their types

    @property
    def has_more(self) -> bool:
        """Whether a reply has begun, and has not ended."""
        return bool(self._rest or self._begun)

    def feed(self, data: bytes) -> list[Any]:
        """The replies that are whole now. Raises ValueError if it is not RESP."""
        is_line = 0 < data.find(END) == len(data) - 2 and not (self._rest or self._begun)
        if is_line and data[:1] == b":":
            return [int(data[1:])]  # one number: most often
        text = self._rest + data
        at, begun, found = 0, self._begun, []
        while (end := text.find(END, at)) >= 0:
            value, after, length = _element(text, text[at], text[at + 1 : end], end + 2)
            if after > len(text):
                break
            kind, at = text[at], after
            if length:
                begun.append((length, [], kind))
                continue
            while begun:
                length, members, _ = begun[-1]
                members.append(value)
                if len(members) < length:
                    break
                _, value, kind = begun.pop()
            else:
                if kind != PUSH:
                    found.append(value)
        self._rest = text[at:]
        return found


def _element(text: bytes, kind: int, line: bytes, at: int) -> tuple[Any, int, int]:
    """The value that begins with this line, where it ends, and the length if it is a list."""
    if kind in b"+":
        return line, at, 0
    if kind in b":":
        return int(line), at, 0
    if kind in b"$=":
        length = int(line)
        first = at + 4 * (kind == VERBATIM)  # after txt:
        return (text[first : at + length], at + length + 2, 0) if length >= 0 else (None, at, 0)
    if kind in b"-":
        return _error(line.decode(errors="replace")), at, 0
    if kind in b"*%>":
        length = int(line) * (1 + (kind == MAP))
        return ([] if length == 0 else None), at, max(length, 0)
    if kind == NULL:
        return None, at, 0
    raise ValueError(f"not a reply: {kind:c}")


def _error(message: str) -> ResponseError:
    if message.startswith("NOSCRIPT"):
        return NoScriptError(message)
    if message.startswith("NOPERM"):
        return NoPermissionError(message)
    return ResponseError(message.removeprefix("ERR "))
