"""Whether a subscription still lives: the server may have forgotten it, and cannot say so."""

from __future__ import annotations

from lockkit.model.clock import now
from lockkit.stores.redis.settings import SOCKET_TIMEOUT, Connection

SILENCE = 5.0
"""Seconds without a word from the server, after which it is asked for one."""


class Pulse:
    """When the server was heard of, and asked. Asked means told to subscribe once more: every user
    who may listen may do so, and the answer says that the server knows the subscription.

    A doubt is a reason to ask at once: a claim that was in the queue a moment ago is gone, maybe
    because nobody heard of its grant. Asked without an answer for as long as any request may take,
    the subscription is dead. So it is at a doubt after such an answer, without a message in
    between: the server that answers may not be the one that grants any more.
    """

    def __init__(self, connection: Connection) -> None:
        self._patience = connection.socket_timeout or SOCKET_TIMEOUT
        self._was_doubted = self._doubted = False
        self.heard(message=True)

    def heard(self, *, message: bool) -> None:
        self._heard = now()
        self._asked: float | None = None
        self._was_doubted = not message and (self._was_doubted or self._doubted)
        self._doubted = False

    def doubt(self) -> None:
        self._doubted = True

    def asked(self) -> None:
        self._asked = now()

    @property
    def is_due(self) -> bool:
        """Whether it is time to ask."""
        if self._asked is not None or self._is_doubted_again:
            return False
        return self._doubted or now() - self._heard > SILENCE

    def left(self) -> float:
        """Seconds for which nothing is to be done if nothing is heard, or less than none."""
        if self._is_doubted_again:
            return 0.0
        if self._asked is not None:
            return self._asked + self._patience - now()
        return 0.0 if self._doubted else self._heard + SILENCE - now()

    @property
    def is_dead(self) -> bool:
        return (self._asked is not None or self._is_doubted_again) and self.left() <= 0

    @property
    def _is_doubted_again(self) -> bool:
        return self._was_doubted and self._doubted
