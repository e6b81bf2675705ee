"""What proves a claim: random, and drawn many at a time."""

from __future__ import annotations

import os

from lockkit.runtime import process

TOKEN_BYTES = 16
TOKENS_AT_ONCE = 128


class _Tokens:
    """Random tokens, drawn from the operating system many at a time: one draw can cost 20 µs.

    A forked child starts with none, so no two processes share a draw.
    """

    def __init__(self) -> None:
        self._forget()
        process.after_fork(self._forget)

    def _forget(self) -> None:
        self._ready: list[str] = []

    def next(self) -> str:
        """128 random bits in hexadecimal: what proves the right to extend and to release."""
        try:
            return self._ready.pop()  # atomic, so no two threads get the same
        except IndexError:
            # What secrets.token_hex does; that module's import takes longer than lockkit's own.
            drawn = os.urandom(TOKEN_BYTES * TOKENS_AT_ONCE).hex()
            size = TOKEN_BYTES * 2
            self._ready += [drawn[i : i + size] for i in range(size, len(drawn), size)]
            return drawn[:size]


_tokens = _Tokens()
new_token = _tokens.next
