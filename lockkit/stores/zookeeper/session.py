"""One session with ZooKeeper: kazoo connects it, and keeps it alive."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, ConnectionDropped
from kazoo.protocol.serialization import CloseInstance
from kazoo.protocol.states import KazooState, KeeperState

from lockkit.engine.effects import Park, Signal, Step
from lockkit.model.clock import now
from lockkit.model.errors import BackendError, BackendUnavailable, StoreRefused
from lockkit.model.log import log, log_error
from lockkit.runtime import native
from lockkit.stores.zookeeper.failures import cannot_begin, reading, unreachable
from lockkit.stores.zookeeper.handler import Handler, logger_of_kazoo
from lockkit.stores.zookeeper.requests import Answers, Ask
from lockkit.stores.zookeeper.settings import Configuration

RETRIES = {"max_tries": -1, "delay": 0.03, "backoff": 1.5, "max_delay": 0.25}

LATE = 0.25
"""Part of a session's timeout: see ``ends``."""

SIGNS = 32
"""How many signs of life are remembered. At most so many are noted in a session's timeout."""

GOODBYE_SECONDS = 1.0
"""The most seconds to wait for the reply to a session's end. Without one, the server probably knows
of the end nevertheless."""

NUMBERS = 2**20
"""The most requests of one connection: the next connection begins to count so much higher."""


class Session:
    """Its requests are applied in the order in which they were made, also across its connections.
    ``timeout``: seconds; those asked for, and once it is open, those that the server has granted.
    """

    def __init__(
        self,
        configuration: Configuration,
        milliseconds: int,
        changed: Callable[[Session, bool], object],
    ) -> None:
        """``changed``: is called in the session's thread whenever its claims may be over, and again
        when it is connected anew. It gets the session, and whether the claims are certainly over.
        """
        self.timeout = milliseconds / 1000
        self.acl = configuration.acl
        self.ended = 0  #: how often the servers' session has ended, and another one taken its place
        self.watches: dict[str, Any] = {}  #: by the paths that are watched
        self._configuration = configuration
        self._changed = changed
        self._handler = Handler(configuration.connect_timeout, configuration.tls)
        self.kazoo = KazooClient(
            configuration.hosts,
            timeout=self.timeout,
            handler=self._handler,
            connection_retry=dict(RETRIES),
            logger=logger_of_kazoo(),
        )
        self.kazoo.add_listener(self._listen)
        self._handler.on_end = self._end
        connection = self.kazoo._connection
        self._connect, self._submit = connection._connect, connection._submit
        connection._connect, connection._submit = self._connecting, self._submitting
        connection._read_response = partial(reading, connection._read_response)
        self._sure = 0.0  #: the leader knows that the session was alive then
        self._signs = deque[float](maxlen=SIGNS)  #: something was sent just after these moments
        self._xids = 0
        self._is_ready = False
        self._refusal: Exception | None = None
        self._withheld: Exception | None = None  #: why the user's function gave no password
        self._may_live_until = 0.0  #: while it has no connection
        self._stopping: Signal | None = None
        self._opening: set[Signal] = set()
        self._working = threading.Lock()
        self._has_begun = self._is_ending = False

    def begin(self) -> None:
        """Begin to connect, unless that has begun. If interrupted, it can be called again."""
        if not (self._has_begun or self.is_over):
            try:
                native.start(self._work, (self._open,), "lockkit-zookeeper-open")
            except RuntimeError as error:  # no thread is left
                raise cannot_begin(error) from error

    def opening(self, seconds: float) -> Step[None]:
        """Wait until it is open, or will never be."""
        signal = Signal()
        self._opening.add(signal)
        try:
            if not (self.is_open or self.is_over):
                yield Park(signal, seconds)
        finally:
            self._opening.discard(signal)

    @property
    def is_open(self) -> bool:
        """Asks kazoo as well: when a connection breaks, kazoo first fails the requests under way,
        and only then tells its listeners."""
        return self._is_ready and bool(self.kazoo.connected)

    @property
    def is_over(self) -> bool:
        """Whether it is over for good, so that another session must take its place."""
        is_told_to = self._stopping is not None
        return is_told_to or self._refusal is not None or self._handler.has_ended

    def has_made(self, stat: Any) -> bool:
        """Whether this very session has made the node with this stat."""
        known = self.kazoo.client_id
        return known is not None and stat.owner_session_id == known[0]

    def send(self, requests: Sequence[Ask]) -> Answers:
        """Send them, from any thread. The signal is set when all have been answered."""
        answers = Answers(len(requests), self.ended)
        self._handler.run(partial(answers.ask, self, requests))
        return answers

    def run(self, errand: Callable[[], object]) -> None:
        self._handler.run(errand)

    def ends(self, sent: float) -> float:
        """The moment before which the leader does not end it, if a write sent at ``sent`` has been
        acknowledged. Limit: the session must be two ticks long, as it is by the servers' defaults.

        The leader counts from the last sign of life that it has heard of. The other servers report
        their clients' signs when they answer its pings, twice in a tick. So the write proves only
        that the leader has heard of signs until half a tick before it, which is at most LATE of the
        timeout; of a shorter session (``minSessionTimeout``) it is more. Between two signs, kazoo
        is silent for a third of the timeout plus 0.4 s; in a process that was stopped, for longer.
        """
        heard = [sign for sign in tuple(self._signs) if sign <= sent - LATE * self.timeout]
        return max([self._sure, *heard]) + self.timeout

    def failure(self) -> BackendError:
        """Why it is not open."""
        why = self._refusal or self._withheld
        if why is None:
            return unreachable(self._handler.reason)
        refusal: BackendError = StoreRefused(
            "ZooKeeper refuses the user or the password, or there is none"
        )
        if isinstance(why, BackendUnavailable):
            refusal = BackendUnavailable(str(why))
        refusal.__cause__ = why.__cause__ or why
        return refusal

    def stop(self) -> Signal:
        """End it, and with it all that it has made. The signal is set when that is done. If this is
        interrupted, it can be called again."""
        if self._stopping is None:
            self._stopping = Signal()
            self._is_ready = False
            self._wake()
        if not self._is_ending:
            try:
                native.start(self._work, (self._stop,), "lockkit-zookeeper-close")
            except RuntimeError:  # at the end of the program, where kazoo's thread goes on alone
                self._handler.on_end = self._stopping.set
                self.kazoo._safe_close = list
                self._work(self._leave if self._has_begun else self._stop)
        return self._stopping

    def let_go(self) -> None:
        self._handler.let_go()

    def _work(self, task: Callable[[], object]) -> None:
        """Run it. Called in a thread of its own, which is never interrupted and may wait."""
        with self._working:
            try:
                task()
            except Exception as error:  # noqa: BLE001  nobody waits for it
                log.debug("a session in ZooKeeper: %r", error)

    def _open(self) -> None:
        if self._has_begun or self._is_ending:
            return
        self._has_begun = True
        try:
            self.kazoo.start_async()
        except Exception as error:  # no thread, or no pipe: another session may have them
            self._handler.reason, self._handler.has_ended = error, True
            self._wake()
            self.kazoo.close()
            self._handler.close()
            raise

    def _leave(self) -> None:
        """End the session at the server. kazoo's own stop first ends its thread. If that is between
        two requests, it tells the server nothing, and the nodes would stay for the timeout."""
        if self.kazoo.connected:
            self.kazoo._queue.append((CloseInstance, None))
            self.kazoo._connection._write_sock.send(b"\0")
            self.kazoo._connection.connection_stopped.wait(GOODBYE_SECONDS)
        self.kazoo.stop()

    def _stop(self) -> None:
        if self._is_ending:
            return
        self._is_ending = True
        try:
            self._leave()
            self.kazoo.close()
            self._handler.close()
        finally:
            if self._stopping is not None:
                self._stopping.set()

    def _connecting(self, host: str, *where: Any) -> tuple[float, float]:
        """Replaces kazoo's step, whose reply has the timeout that the server has granted."""
        self._handler.peer = host
        self._authenticate()
        began = now()
        with self._handler.connecting():
            read, connect = self._connect(host, *where)
        # kazoo counts its requests anew in each connection. A server could take one of them for
        # the one of the same number that the session has sent in another.
        self._xids = (self._xids + NUMBERS) % 2**30
        self.kazoo._connection._xid = self._xids
        self._note_timeout(read * 3 / 2000)
        self._sure = began
        self._is_ready = True
        self._wake()
        self._tell(is_lost=False)
        return read, connect

    def _submitting(self, *request: Any) -> None:
        """Replaces kazoo's step, which sends requests and pings. The moment is taken before that,
        because the process may be paused while it sends."""
        moment = now()
        if not self._signs or moment - self._signs[-1] >= self.timeout / SIGNS:
            self._signs.append(moment)
        self._submit(*request)

    def _authenticate(self) -> None:
        """Ask for the credentials, perhaps of the user's function, which may fail. While leases may
        live, kazoo tries again; otherwise the session is over."""
        try:
            self.kazoo.auth_data, self._withheld = self._configuration.credentials(), None
        except Exception as error:
            self._withheld = error
            if now() < self._may_live_until:
                raise ConnectionDropped("no password") from error
            self._refusal = error
            raise AuthFailedError from error

    def _note_timeout(self, granted: float) -> None:
        if granted > self.timeout * 1.01:
            log.warning(
                "ZooKeeper's shortest session is longer than the ttl of %g s: the locks of a "
                "process that dies are free after %g s",
                self.timeout,
                granted,
            )
        self.timeout = granted

    def _listen(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            return  # ``_connecting`` goes on until the timeout is known
        if self._is_ready:
            log.info("the connection to ZooKeeper is lost; whether its leases live is unknown")
        self._is_ready = False
        self._may_live_until = now() + self.timeout if state == KazooState.SUSPENDED else 0.0
        if self.kazoo.client_state == KeeperState.AUTH_FAILED:
            self._refusal = self._refusal or AuthFailedError()
            self._wake()
        self.ended += state == KazooState.LOST
        self._tell(is_lost=state == KazooState.LOST)

    def _end(self) -> None:
        self._is_ready = False
        self._wake()
        self._tell(is_lost=True)

    def _tell(self, *, is_lost: bool) -> None:
        try:
            self._changed(self, is_lost)
        except Exception:  # noqa: BLE001  it must not end the session
            log_error("the state of a session in ZooKeeper could not be told")

    def _wake(self) -> None:
        for signal in tuple(self._opening):
            signal.set()
