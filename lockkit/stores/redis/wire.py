"""The blocking wire: one exchange at a time on a connection, and one subscription for all threads.

Leader and followers: one of the waiting threads reads the subscription for all of them, and hands
the reading over when it leaves. A listener thread of its own would cost a thread switch per grant.
No mutex is held meanwhile: if an interrupt anywhere ends the wait of a leader, the next waiter that
looks replaces it.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Any

from redis.exceptions import NoPermissionError, ResponseError

from lockkit.engine.effects import Exchange, Listen, Park, Signal
from lockkit.model.clock import now
from lockkit.model.errors import BackendError, BackendUnavailable
from lockkit.runtime import native, process
from lockkit.stores.redis.connections import Connections, connect, exchange, whole
from lockkit.stores.redis.failures import anew, bare, from_reply, is_demoted, lost_on_the_way
from lockkit.stores.redis.pulse import Pulse
from lockkit.stores.redis.resp import Replies
from lockkit.stores.redis.settings import Connection
from lockkit.stores.redis.subscription import Inbox

SOONEST = 0.001
"""Seconds: a socket that waits for less does not wait."""


class RedisWire:
    """A payload is one packed command, or a list of them, which are sent at once."""

    def __init__(self, connections: Connections, inbox: Inbox) -> None:
        self._connections = connections
        self._inbox = inbox
        process.in_each_process(self._forget)

    def _forget(self) -> None:
        self._waiting: dict[Signal, native.Wake] = {}
        self._leader: Signal | None = None  #: as long as it waits
        self._choosing = threading.RLock()  # a signal's handler may wait, too
        self._opening = threading.RLock()
        self._connection: Connection | None = None  #: of the subscription
        self._failure: BackendError | None = None  #: of the last attempt to subscribe

    def exchange(self, effect: Exchange) -> Any:
        try:
            return exchange(self._connections, effect.payload)
        except BackendUnavailable as error:
            if is_demoted(error.__cause__):
                self._leave()
            raise

    def listen(self, _: Listen) -> None:
        self.subscribe(self._failure)

    def subscribe(self, before: BackendError | None) -> None:
        """Subscribe, unless that has been tried since ``before`` was the last failure."""
        with self._opening:
            if self._connection is not None or self._inbox.is_forbidden:
                return
            if self._failure is not None and self._failure is not before:
                raise anew(self._failure)  # the error of the attempt that this waiter waited for
            self._try_to_subscribe()

    def park(self, effect: Park) -> None:
        signal, seconds = effect
        deadline = now() + seconds
        wake = native.Wake(threading.Lock)
        try:
            self._waiting[signal] = wake
            signal.wake = wake.set
            while not signal.is_set and (left := deadline - now()) > 0:
                if self._leads(signal):
                    self._lead(signal, wake, deadline)
                else:
                    wake.wait(left)
        finally:
            self._waiting.pop(signal, None)
            if self._inbox.is_forbidden:
                self._hang_up()
            self._promote()

    def close(self) -> None:
        """Close all connections. Claims that wait, now or later, poll the store from now on."""
        with self._opening:  # nobody subscribes after this
            self._inbox.forbid()
        self._leave()

    def _leave(self) -> None:
        """Close idle connections and the subscription. A thread that reads the latter closes it."""
        connection = self._connection
        if connection is not None:
            _end(connection)
        self._hang_up()
        self._connections.close()

    def _leads(self, signal: Signal) -> bool:
        """Whether this waiter is to read: it does so already, or nobody else does."""
        with self._choosing:
            if not self._is_led:
                self._leader = signal
            return self._leader is signal

    @property
    def _is_led(self) -> bool:
        return self._leader in self._waiting

    def _lead(self, signal: Signal, wake: native.Wake, deadline: float) -> None:
        """Read for everybody, until there is something for us or our time is over."""
        pace = self._inbox.pace
        while not signal.is_set:
            left = deadline - now()
            if left <= 0:
                return
            connection = self._connection
            if connection is None:
                wake.wait(left if self._inbox.is_forbidden else max(min(left, pace.left()), 0.0))
                if pace.left() <= 0:
                    self._resubscribe(None)
                return
            try:
                alive = self._read(connection, left)
            except OSError:
                alive = False
            except BaseException:  # interrupted within a reply: the next leader starts anew
                self._drop(connection)
                raise
            if not alive:
                self._resubscribe(connection)
                return

    def _read(self, connection: Connection, left: float) -> bool:
        """Read what comes in time; returns whether the connection may still be alive."""
        pulse = self._inbox.pulse
        if pulse is None:
            return False
        if pulse.is_due:
            pulse.asked()
            self._say_subscribe(connection)
        connection._sock.settimeout(max(min(left, pulse.left()), SOONEST))
        try:
            for reply in whole(self._replies, connection):
                self._inbox.hear(reply)
        except TimeoutError:
            return not pulse.is_dead
        return True

    def _promote(self) -> None:
        """Have one of the others read from now on, if nobody does."""
        if not self._is_led:
            for wake in list(self._waiting.values())[:1]:
                wake.set()

    def _hang_up(self) -> None:
        """Close the subscription, unless somebody reads it: the reader then closes it."""
        with self._choosing:  # else a waiter may begin to read meanwhile
            if not self._is_led and self._connection is not None:
                self._drop(self._connection)

    def _drop(self, connection: Connection) -> None:
        if self._connection is connection:
            self._inbox.pulse = None
            self._connection = None
        connection.disconnect()

    def _resubscribe(self, broken: Connection | None) -> None:
        """Subscribe again. All waiters then ask the store: it may have made grants of which nobody
        heard, be down, or merely take no more connections."""
        inbox = self._inbox
        with self._opening:
            if self._connection is not broken:
                return  # another waiter was faster
            if broken is not None:
                self._drop(broken)
            if inbox.is_forbidden:
                return
            if inbox.pace.left() > 0:
                inbox.have_all_ask()
                return
            inbox.pace.tried()
            try:
                self._try_to_subscribe()
            except BackendError:
                inbox.have_all_ask()

    def _try_to_subscribe(self) -> None:
        try:
            self._subscribe_over(self._connections.fresh())
        except BackendError as error:
            self._failure = bare(error)
            raise
        self._failure = None

    def _subscribe_over(self, connection: Connection) -> None:
        connect(connection)
        replies = Replies()
        try:
            self._say_subscribe(connection)
            said = whole(replies, connection)[0]
        except OSError as error:
            connection.disconnect()
            raise lost_on_the_way(error) from error
        if isinstance(said, ResponseError):
            connection.disconnect()
            if not isinstance(said, NoPermissionError):
                raise from_reply(said) from said
            self._inbox.refuse()
            return
        pulse = Pulse(connection)
        self._inbox.have_all_ask()
        if self._connection is not None:  # a signal's handler has opened one meanwhile
            connection.disconnect()
            return
        # Nothing is called in between, so an interrupt comes before all of it or after.
        self._inbox.pulse, self._replies, self._connection = pulse, replies, connection
        self._inbox.have_all_ask()  # those that have asked in between named no channel

    def _say_subscribe(self, connection: Connection) -> None:
        connection._sock.sendall(self._inbox.subscribe)


def _end(connection: Connection) -> None:
    """Make the thread that reads it fail. Closing the socket under that thread would be a race: by
    the time of the read, its file descriptor may be that of another file."""
    with suppress(OSError, AttributeError, TypeError):  # it may just have broken, or been closed
        socket.socket.shutdown(connection._sock, socket.SHUT_RDWR)
