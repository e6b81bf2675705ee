"""Where the waiters of one client hear that a name may be theirs: by LISTEN and NOTIFY.

A thread listens on one connection for all of them, as long as somebody waits; threads and tasks
sleep on signals that it sets. A handoff is committed before its message comes, so the message is
the grant, if it has the claim's latest ticket. A waiter that hears nothing asks the table all the
same, but seldom. Waiters poll until a message that the client has sent to itself has come, and
whenever the connection is broken.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable

from lockkit.engine.effects import Park, Signal, Step
from lockkit.engine.state import SECOND
from lockkit.model.clock import now
from lockkit.model.errors import LockError, UnsupportedCapability
from lockkit.model.log import log
from lockkit.model.types import Grant
from lockkit.runtime import native
from lockkit.runtime.background import LONGEST_SLEEP, Background
from lockkit.stores.servers import shut_down
from lockkit.stores.sql.codec import is_whole
from lockkit.stores.sql.connector import Connector, Ear, Missed

PROOF_SECONDS = 1.0
"""Seconds within which a message to itself must come. If it does not, there is probably a
transaction pooler in between."""

PULSE = 5.0
"""Seconds without a message after which the client sends itself one, to test the connection."""

AGAIN = 60.0
"""Seconds after which listening is tried again behind what looks like a pooler."""

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
"""Seconds between two tries to connect: doubled each time, up to LONGEST_PAUSE."""


class WaitingClaim(Signal):
    """A claim that waits."""

    __slots__ = ("message", "seen")

    def __init__(self) -> None:
        super().__init__()
        self.message = ""  #: the last one, without the token
        self.seen = 0  #: the clock of the database when it last said that the claim waits

    def granted(self, token: str, ticket: int) -> Grant | None:
        """The grant in the message. None: there is none for this ticket, or it cannot be read, as
        anybody may have sent it. The time left counts from the claim's last request."""
        message, self.message = self.message, ""
        try:
            told, fence, until = map(int, message.split())
            left = (until - self.seen) / SECOND
        except (ValueError, OverflowError):
            return None
        return Grant(token, fence, left) if told == ticket and is_whole(fence) else None


class Inbox(Background):
    """The channel of one client in one process, and its waiting claims."""

    thread_name = "lockkit-listen"

    def __init__(self, connector: Connector, prove: Callable[[str], object]) -> None:
        """``prove``: sends an empty message to a channel, over another connection."""
        self._connector = connector
        self._prove = prove
        self._inherited: list[Ear] = []
        self._connection: Ear | None = None
        super().__init__()

    def _reset(self) -> None:
        """Also called in a forked child. There the connection is the parent's: it is kept, because
        closing it would end it for the parent."""
        super()._reset()
        if self._connection is not None:
            self._inherited.append(self._connection)
        self._connection = None
        self.channel = f"lockkit_{secrets.token_hex(8)}"
        self.is_open = False  #: messages are known to come
        self._claims: dict[str, WaitingClaim] = {}
        self._is_idle = True  #: the thread has to be woken for a new waiter
        self._heard = -math.inf  #: when the last message came
        self._asked: float | None = None  #: when a message to itself was sent that has not come yet
        self._pause = 0.0
        self._not_before = -math.inf  #: when it may connect again

    @property
    def is_awaited(self) -> bool:
        return bool(self._claims)

    def seen(self, token: str, moment: int) -> None:
        """Note that the claim waits, at this moment of the database's clock: a message may come."""
        self._claims.setdefault(token, WaitingClaim()).seen = moment

    def forget(self, token: str) -> None:
        self._claims.pop(token, None)

    def wait(self, token: str, seconds: float, pause: float, ticket: int) -> Step[Grant | None]:
        """Wait for a message, for ``seconds`` at most; if none can come, for ``pause``. Returns the
        grant in the message. None: ask the table."""
        if self._is_idle and not native.is_patched():
            self._hurry()
        claim = self._claims.setdefault(token, WaitingClaim())
        if not claim.is_set:
            yield Park(claim, self._sleep(token, seconds, pause))
        claim.is_set = False  # before the look, which sees a message that comes now
        return claim.granted(token, ticket)

    def _sleep(self, token: str, seconds: float, pause: float) -> float:
        return seconds if self.is_open else pause

    def close(self) -> None:
        """Stop listening. Claims that still wait poll. A later wait starts it again."""
        self._end()
        connection = self._connection
        if connection is not None and connection.descriptor is not None:
            shut_down(connection.descriptor, lambda: self._connection is not connection)

    def ended(self) -> None:
        self._is_idle = True  # before all ask, so that a later wait starts another thread
        self._drop()

    def work(self) -> float:
        """Connect if need be; then wait for messages, for a second at most."""
        self._is_idle = True  # before the look, so that a waiter which comes now wakes us
        if not self._claims:
            return LONGEST_SLEEP
        self._is_idle = False
        if self._connection is None and (left := self._not_before - now()) > 0:
            return left
        try:
            self._listen(self._connection or self._opened())
        except UnsupportedCapability as error:
            self._not_before = math.inf
            log.info("waiters for locks poll %s: %s", self._connector.described(), error)
        except (LockError, Missed) as error:
            self._drop()
            self._pause = min(2 * self._pause + FIRST_PAUSE, LONGEST_PAUSE)
            self._not_before = now() + self._pause
            log.debug("the connection that waiters for locks listen on broke: %s", error)
        return 0.0

    def _opened(self) -> Ear:
        self._connection = self._connector.listen(self.channel)
        self._asked = None
        return self._connection

    def _listen(self, connection: Ear) -> None:
        if self._asked is None and now() - self._heard > PULSE:
            self._prove(self.channel)
            self._asked = now()  # not before: it may have waited for its connection
        patience = PULSE if self._asked is None else self._asked + PROOF_SECONDS - now()
        messages = connection.messages(max(min(patience, PROOF_SECONDS), 0.01))
        self._heed(messages)
        if messages:
            self._heard, self._asked, self._pause = now(), None, 0.0
            self._open()
        elif self._asked is not None and now() - self._asked > PROOF_SECONDS:
            self._give_up()

    def _heed(self, messages: list[str]) -> None:
        for message in messages:
            token, _, said = message.partition(" ")
            self._rouse(token, said)

    def _rouse(self, token: str, said: str = "") -> None:
        if (claim := self._claims.get(token)) is not None:
            claim.message = said
            claim.set()

    def _open(self) -> None:
        """Messages come now. Claims that wait already ask the table once more: they may have been
        granted by a message that did not come."""
        if not self.is_open:
            self.is_open = True
            self._have_all_ask()

    def _give_up(self) -> None:
        """Close a connection over which no message comes. If one came before, the connection is
        opened anew at once; if none ever came, after AGAIN seconds."""
        was_open = self.is_open
        self._drop()
        if not was_open:
            self._not_before = now() + AGAIN
            log.warning(
                "waiters for locks poll %s: a notification did not come within %g s. %s",
                self._connector.described(),
                PROOF_SECONDS,
                self._connector.suspicion(),
            )

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        self.is_open = False
        self._heard = -math.inf
        if connection is not None:
            connection.close()
        self._have_all_ask()

    def _have_all_ask(self) -> None:
        for claim in list(self._claims.values()):
            claim.set()
