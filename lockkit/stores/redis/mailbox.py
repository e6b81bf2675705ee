"""Grants by message: one subscription for all the waiting threads of a process.

Leader and followers: one of the waiting threads reads the socket for all of them, and hands the
reading over when it leaves. A listener thread of its own would cost a thread switch per grant.
Nothing is locked meanwhile: a leader that waits no more, because it was interrupted anywhere, is
replaced by whoever looks next.

After every (re)subscription each waiter asks the store once, because a message may have been
missed: the store's state decides, a message only saves asking. While there is no subscription,
because the server takes no more connections, each asks after every try to have one again.
"""

from __future__ import annotations

import math
import socket
import threading
from contextlib import suppress
from typing import Any

from redis.exceptions import NoPermissionError, RedisError

from lockkit.model.clock import now
from lockkit.model.errors import BackendError
from lockkit.runtime import native
from lockkit.stores.redis.connections import Connections, connect
from lockkit.stores.redis.failures import lost_on_the_way
from lockkit.stores.redis.protocol import pack
from lockkit.stores.redis.pulse import Pulse
from lockkit.stores.redis.replies import read_message
from lockkit.stores.redis.settings import Connection

__all__ = ["Mailbox", "Pace"]

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds between two tries to subscribe again: doubled each time, up to the second."""


class Pace:
    """When to try again: at once after what worked, then later each time."""

    def __init__(self) -> None:
        self._pause = 0.0
        self._last = -math.inf

    def left(self) -> float:
        """Seconds until the next try, or less than none."""
        return self._last + self._pause - now()

    def tried(self) -> None:
        moment = now()
        if moment - self._last > 2 * LONGEST_PAUSE:
            self._pause = 0.0  # it worked for a while
        self._last = moment
        self._pause = min(max(2 * self._pause, FIRST_PAUSE), LONGEST_PAUSE)

    def worked(self) -> None:
        self._pause = 0.0


class Slot:
    """One waiting claim: where its message goes."""

    __slots__ = ("epoch", "message", "waiting", "woken")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.message: tuple[int, int] | None = None  #: ticket, fence
        self.waiting = False
        self.woken = native.Wake(threading.Lock)


class Mailbox:
    """The subscription of one process to its own channel."""

    def __init__(self, connections: Connections, channel: bytes) -> None:
        self._connections = connections
        self.channel = channel
        self._forget()

    def _forget(self) -> None:
        self._slots: dict[str, Slot] = {}
        self._leader: Slot | None = None  #: as long as it waits
        self._choosing = threading.RLock()  # the handler of a signal may come to wait, too
        self._opening = threading.Lock()
        self._connection: Connection | None = None
        self._epoch = 0
        self._pace = Pace()
        self._pulse: Pulse | None = None  #: of the connection
        self.forbidden = False  #: to listen: who waits must ask

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    def open(self) -> None:
        """Subscribe, if nobody has yet. Raises a BackendError."""
        with self._opening:
            if not self.is_open and not self.forbidden:
                self._subscribe()

    def expect(self, token: str) -> None:
        """A message for this token may come from now on."""
        self._slots[token] = Slot(self._epoch)

    def forget(self, token: str) -> None:
        self._slots.pop(token, None)

    def doubt(self) -> None:
        """A claim that waited is gone from the store: maybe nobody has heard of its grant."""
        if self._pulse is not None:
            self._pulse.doubt()

    def wait(self, token: str, ticket: int, seconds: float) -> int | None:
        """The fence of a grant of this enqueueing, or None: time is over, or better ask."""
        slot = self._slots.get(token)
        if slot is None:
            return None
        deadline = now() + seconds
        slot.waiting = True
        try:
            return self._wait(slot, ticket, deadline)
        finally:
            slot.waiting = False
            if self.forbidden:
                self._hang_up()
            self._promote()

    def close(self) -> None:
        """Who still waits, or comes later, asks the store again and again."""
        with self._opening:
            self.forbidden = True
            if self._connection is not None:
                _end(self._connection)
            self._have_all_ask()
        self._hang_up()

    def _wait(self, slot: Slot, ticket: int, deadline: float) -> int | None:
        while True:
            message, slot.message = slot.message, None
            if message is not None and message[0] == ticket:
                return message[1]
            if slot.epoch != self._epoch:
                slot.epoch = self._epoch
                return None
            left = deadline - now()
            if left <= 0:
                return None
            if self._leads(slot):
                self._lead(slot, deadline)
            else:
                slot.woken.wait(left)

    def _leads(self, slot: Slot) -> bool:
        """Whether this one reads: it does already, or nobody does."""
        with self._choosing:
            if not self._is_led:
                self._leader = slot
            return self._leader is slot

    @property
    def _is_led(self) -> bool:
        return self._leader is not None and self._leader.waiting

    def _lead(self, slot: Slot, deadline: float) -> None:
        """Read for everybody, until there is something for us or our time is over."""
        while slot.message is None:
            left = deadline - now()
            if left <= 0:
                return
            connection = self._connection
            if connection is None:
                slot.woken.wait(max(min(left, self._pace.left()), 0.0))
                if self._pace.left() <= 0:
                    self._resubscribe(None)
                return
            try:
                alive = self._read(connection, slot, left)
            except (RedisError, OSError):
                alive = False
            except BaseException:  # interrupted within a reply: the next leader starts anew
                self._connection = None
                connection.disconnect()
                raise
            if not alive:
                self._resubscribe(connection)
                return

    def _read(self, connection: Connection, slot: Slot, left: float) -> bool:
        """One reply, if it comes soon; whether the connection is worth another look."""
        pulse = self._pulse
        if pulse is None:
            return False
        if pulse.is_due:
            pulse.asked()
            self._say_subscribe(connection)
        if connection.can_read(timeout=max(min(left, pulse.left()), 0)):
            pulse.heard()
            self._dispatch(connection.read_response(disable_decoding=True), slot)
        return not pulse.is_dead

    def _dispatch(self, reply: Any, ours: Slot) -> None:
        self._pace.worked()
        message = read_message(reply)
        slot = self._slots.get(message.token) if message else None
        if message is None or slot is None:
            return
        slot.message = (message.ticket, message.fence)
        if slot is not ours:  # the leader looks by itself
            slot.woken.set()

    def _promote(self) -> None:
        """Have one of the others read from now on, if nobody does."""
        if self._is_led:
            return
        for slot in list(self._slots.values()):
            if slot.waiting:
                slot.woken.set()
                return

    def _hang_up(self) -> None:
        """Close the connection of a closed client, unless somebody reads it, who then does so."""
        with self._choosing:
            if self._is_led:
                return
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()

    def _resubscribe(self, broken: Connection | None) -> None:
        """Everybody asks the store: it may have granted unheard, or be down, or only be full."""
        with self._opening:
            if self._connection is not broken:
                return  # somebody who came to wait was faster
            self._connection = None
            if broken is not None:
                broken.disconnect()
            if self.forbidden:
                return
            if self._pace.left() > 0:
                self._have_all_ask()
                return
            self._pace.tried()
            try:
                self._subscribe()
            except BackendError:
                self._have_all_ask()

    def _subscribe(self) -> None:
        connection = self._connections.fresh()
        connect(connection)
        try:
            self._say_subscribe(connection)
            connection.read_response(disable_decoding=True)
        except NoPermissionError:
            connection.disconnect()
            self.forbidden = True
            self._have_all_ask()
        except RedisError as error:
            connection.disconnect()
            raise lost_on_the_way(error) from error
        else:
            self._have_all_ask()  # first: interrupted in between, the next one makes it anew
            self._pulse = Pulse(connection)
            self._connection = connection

    def _say_subscribe(self, connection: Connection) -> None:
        connection.send_packed_command([pack(b"SUBSCRIBE", self.channel)], check_health=False)

    def _have_all_ask(self) -> None:
        self._epoch += 1
        for slot in list(self._slots.values()):
            slot.woken.set()


def _end(connection: Connection) -> None:
    """Have whoever reads it hear that it is over. To close it under a reader is a race: its number
    may be that of another file by the time of that read."""
    with suppress(OSError, AttributeError):  # it may just have broken by itself
        socket.socket.shutdown(connection._sock, socket.SHUT_RDWR)
