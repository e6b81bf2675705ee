"""Grants by message: one subscription for all the waiting threads of a process.

Leader and followers: one of the waiting threads reads the socket for all of them, and hands the
reading over when it leaves. A listener thread of its own would cost a thread switch per grant.

After every (re)subscription each waiter asks the store once, because a message may have been
missed: the store's state decides, a message only saves asking.
"""

from __future__ import annotations

import threading
from typing import Any

from redis.exceptions import NoPermissionError, RedisError

from lockkit.backends.redis.connections import Connection, Connections, connect
from lockkit.backends.redis.failures import lost_on_the_way
from lockkit.backends.redis.protocol import pack
from lockkit.backends.redis.replies import read_message
from lockkit.clock import now
from lockkit.errors import BackendError

__all__ = ["Mailbox"]


class Slot:
    """One waiting claim: where its message goes."""

    __slots__ = ("epoch", "error", "message", "waiting", "woken")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.message: tuple[int, int] | None = None  #: ticket, fence
        self.error: BackendError | None = None
        self.waiting = False
        self.woken = threading.Event()


class Mailbox:
    """The subscription of one process to its own channel."""

    def __init__(self, connections: Connections, channel: bytes) -> None:
        self._connections = connections
        self.channel = channel
        self._forget()

    def _forget(self) -> None:
        self._slots: dict[str, Slot] = {}
        self._leading = threading.Lock()
        self._opening = threading.Lock()
        self._connection: Connection | None = None
        self._epoch = 0
        self.is_open = False
        self.forbidden = False

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
            if not self._leading.locked():
                self._promote()

    def close(self) -> None:
        with self._opening:
            self.is_open = False
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()

    def _wait(self, slot: Slot, ticket: int, deadline: float) -> int | None:
        while True:
            message, slot.message = slot.message, None
            if message is not None and message[0] == ticket:
                return message[1]
            if slot.error is not None:
                raise slot.error
            if slot.epoch != self._epoch:
                slot.epoch = self._epoch
                return None
            left = deadline - now()
            if left <= 0:
                return None
            if self._leading.acquire(blocking=False):
                try:
                    self._lead(slot, deadline)
                finally:
                    self._leading.release()
            else:
                slot.woken.wait(left)
                slot.woken.clear()

    def _lead(self, slot: Slot, deadline: float) -> None:
        """Read for everybody, until there is something for us or our time is over."""
        while slot.message is None:
            left = deadline - now()
            if left <= 0:
                return
            connection = self._connection
            if connection is None:
                self._resubscribe()
                return
            try:
                if connection.can_read(timeout=left):
                    self._dispatch(connection.read_response(disable_decoding=True), slot)
            except (RedisError, OSError):
                self._resubscribe()
                return
            except BaseException:  # interrupted within a reply: the next leader starts anew
                self._connection = None
                connection.disconnect()
                raise

    def _dispatch(self, reply: Any, ours: Slot) -> None:
        message = read_message(reply)
        slot = self._slots.get(message.token) if message else None
        if message is None or slot is None:
            return
        slot.message = (message.ticket, message.fence)
        if slot is not ours:  # the leader looks by itself
            slot.woken.set()

    def _promote(self) -> None:
        """Have one of the others read from now on."""
        for slot in list(self._slots.values()):
            if slot.waiting:
                slot.woken.set()
                return

    def _resubscribe(self) -> None:
        """Everybody asks the store once; or everybody hears that it is down."""
        with self._opening:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.disconnect()
            try:
                self._subscribe()
            except BackendError as error:
                self.is_open = False
                for slot in list(self._slots.values()):
                    slot.error = error
                    slot.woken.set()
                raise
        for slot in list(self._slots.values()):
            slot.woken.set()

    def _subscribe(self) -> None:
        connection = self._connections.fresh()
        connect(connection)
        try:
            connection.send_packed_command([pack(b"SUBSCRIBE", self.channel)], check_health=False)
            connection.read_response(disable_decoding=True)
        except NoPermissionError:
            connection.disconnect()
            self.forbidden = True
            self._epoch += 1  # who waits already must ask from now on
            return
        except RedisError as error:
            connection.disconnect()
            raise lost_on_the_way(error) from error
        self._connection = connection
        self._epoch += 1
        self.is_open = True
