"""Grants by message: what the waiting claims of one process or event loop expect, and hear.

No I/O: a wire subscribes, reads, and gives what it reads to ``hear``. After every (re)subscription
each waiter asks the store once, because a message may have been missed: the store's state decides,
a message only saves asking. While there is no subscription, for example because the server takes
no more connections, each waiter asks after every try to subscribe again.
"""

from __future__ import annotations

import math
from typing import Any

from redis.exceptions import ResponseError

from lockkit.engine.effects import Park, Signal, Step
from lockkit.model.clock import now
from lockkit.model.log import log
from lockkit.stores.redis.protocol import pack
from lockkit.stores.redis.pulse import Pulse

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds between two tries to subscribe again: doubled each time, up to LONGEST_PAUSE."""

REFUSED_FOR = 30.0
"""Seconds after which a user who may not subscribe tries again."""


class Pace:
    """When to try again: at once after a success, then later each time."""

    def __init__(self) -> None:
        self._pause = 0.0
        self._last = -math.inf

    def left(self) -> float:
        """Seconds until the next try; may be negative."""
        return self._last + self._pause - now()

    def tried(self) -> None:
        moment = now()
        if moment - self._last > 2 * LONGEST_PAUSE:
            self._pause = 0.0  # it worked for a while
        self._last = moment
        self._pause = min(max(2 * self._pause, FIRST_PAUSE), LONGEST_PAUSE)

    def worked(self) -> None:
        self._pause = 0.0


class WaitingClaim(Signal):
    """One waiting claim: where its message goes."""

    __slots__ = ("epoch", "message")

    def __init__(self, epoch: int) -> None:
        super().__init__()
        self.epoch = epoch
        self.message: tuple[int, int] | None = None  #: ticket, fence


class Inbox:
    """The channel of one process or event loop, and its waiting claims."""

    def __init__(self, channel: bytes) -> None:
        self.start_anew(channel)

    def start_anew(self, channel: bytes) -> None:
        """Forget all claims, also in a forked child: its parent's claims are not its own."""
        self.channel = channel
        self.pace = Pace()
        self.pulse: Pulse | None = None  #: of the subscription, while there is one
        self.is_forbidden = False  #: or closed: nobody can listen, so waiters poll
        self._is_closed = False
        self._refused_until: float | None = None
        self.waiting: dict[str, WaitingClaim] = {}  #: by token
        self._epoch = 0

    @property
    def is_open(self) -> bool:
        return self.pulse is not None

    @property
    def is_awaited(self) -> bool:
        return bool(self.waiting)

    @property
    def subscribe(self) -> bytes:
        """The request that subscribes, or asks whether the server still knows the subscription."""
        return pack(b"SUBSCRIBE", self.channel)

    def expect(self, token: str) -> None:
        """A message for this token may come from now on."""
        self.waiting[token] = WaitingClaim(self._epoch)

    def expects(self, token: str) -> bool:
        return token in self.waiting

    def forget(self, token: str) -> None:
        self.waiting.pop(token, None)

    def doubt(self) -> None:
        """A claim that waited was granted without a message, or is gone: maybe because nobody has
        heard of its grant."""
        if self.pulse is not None:
            self.pulse.doubt()

    def wait(self, token: str, ticket: int, seconds: float) -> Step[int | None]:
        """The fence of a grant to this enqueueing. None: time is up, or the store must be asked."""
        claim = self.waiting.get(token)
        if claim is None:
            return None
        deadline = now() + seconds
        while True:
            message, claim.message = claim.message, None
            if message is not None and message[0] == ticket:
                return message[1]
            if claim.epoch != self._epoch:
                claim.epoch = self._epoch
                return None
            left = deadline - now()
            if left <= 0:
                return None
            claim.is_set = False  # before the next look: what comes in between is seen there
            if claim.epoch == self._epoch and not claim.message:
                yield Park(claim, left)

    def hear(self, reply: Any) -> None:
        """Take a reply that was read from the subscription. Raises ConnectionError if it refuses to
        subscribe once more, which is how a server is asked whether it still knows us."""
        if isinstance(reply, ResponseError):
            raise ConnectionError("the server refuses the subscription") from reply
        self.pace.worked()
        is_message = reply[0] == b"message"
        if self.pulse is not None:
            self.pulse.heard(message=is_message)
        if not is_message:
            return
        try:
            token, ticket, fence = reply[2].decode().split(" ")
            message = int(ticket), int(fence)
        except ValueError:  # anybody with the right may publish
            return
        if (claim := self.waiting.get(token)) is not None:
            claim.message = message
            claim.set()

    def refuse(self) -> None:
        """The user may not subscribe. That may be a mistake which is put right some day."""
        is_new, self._refused_until = self._refused_until is None, now() + REFUSED_FOR
        self.is_forbidden = True
        self.have_all_ask()
        if is_new:
            say = "the user may not subscribe to %s: waiters poll (docs/redis.md has an ACL line)"
            log.warning(say, self.channel.decode())

    def polled(self) -> None:
        """Let waiters subscribe again, if a refusal was long ago."""
        if not self._is_closed and self._refused_until is not None:
            self.is_forbidden = now() < self._refused_until

    def forbid(self) -> None:
        """No message will come any more."""
        self.is_forbidden = self._is_closed = True
        self.have_all_ask()

    def have_all_ask(self) -> None:
        """A message may have been missed. Called before a new subscription is noted."""
        self._epoch += 1
        for claim in list(self.waiting.values()):
            claim.set()
