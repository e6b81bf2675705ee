"""Whether a subscription still lives: the server may have forgotten it, and cannot say so."""

from __future__ import annotations

from lockkit.model.clock import now
from lockkit.stores.redis.settings import Connection

SILENCE = 5.0
"""Seconds without a word from the server after which it is asked for one."""


class Pulse:
    """When the server was last heard, and when it was asked. It is asked by subscribing once more:
    every user who may listen may do so, and the answer says that it knows the subscription.

    A doubt is a reason to ask at once: a claim that waited was granted without a message, or is
    gone, maybe because nobody heard of its grant. The subscription is dead if no answer comes in
    the time that any request may take; or if the answer after a doubt is followed by another doubt,
    with no message in between: the server that answers may no longer be the one that grants, or may
    have left the cluster.
    """

    def __init__(self, connection: Connection) -> None:
        self._patience: float = connection.socket_timeout
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
        """Seconds until something must be done if nothing is heard; may be negative."""
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
