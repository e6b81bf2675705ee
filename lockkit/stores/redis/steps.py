"""The steps of claims in a Redis server, for any set of scripts.

A store adds its scripts: see ``store`` and ``plain``.
"""

from __future__ import annotations

import secrets
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Self, cast

import redis
from redis.exceptions import NoScriptError

from lockkit.engine.effects import Exchange, Listen, Park, Signal, Step, at_once
from lockkit.engine.times import alive_for
from lockkit.model.clock import now
from lockkit.model.errors import BackendError, BackendUnavailable, LockError
from lockkit.model.settings import AliasSettings
from lockkit.model.types import Busy, Finding, Gone, Grant, Mode, Release, Renewal, Request
from lockkit.runtime import process
from lockkit.stores.contract import Buried, Direct, Fenced, Pushed, ServerClock
from lockkit.stores.records import OnServer
from lockkit.stores.redis import replicas
from lockkit.stores.redis.connections import Connections, OwnConnections
from lockkit.stores.redis.failures import Apart
from lockkit.stores.redis.health import eviction, server
from lockkit.stores.redis.protocol import NO_CHANNEL, POLL, Command, pack
from lockkit.stores.redis.replies import RELEASES, read_acquire, read_extend
from lockkit.stores.redis.scripts import Language, call, look
from lockkit.stores.redis.settings import Maker, maker
from lockkit.stores.redis.subscription import Inbox
from lockkit.stores.redis.wire import RedisWire
from lockkit.stores.wires import AsyncWire

TRY, ENQUEUE = Mode.TRY, Mode.ENQUEUE  # looked up once: a look-up takes time
NEW = tuple.__new__  # takes a third of the time of a call of the class


class ScriptSteps(Direct, Pushed, Fenced, Buried, ServerClock, OnServer):
    """Claims in one server, each step of which is a script; waiters are told by messages."""

    _connections: Connections

    def __init__(self, settings: AliasSettings, language: Language) -> None:
        self._settings = settings
        self._language = language
        self._replicas = replicas.divided(settings)[0]
        self._is_announced = False
        self.inbox = Inbox(language.channel(secrets.token_hex(8)))
        self._handed: dict[str, tuple[Request, float]] = {}
        """Grants by message, by name, each with the time until which it is new. The store has not
        heard from their holders yet."""
        process.after_fork(self._in_child)

    def _in_child(self) -> None:
        self._handed = {}
        self.inbox.start_anew(self._language.channel(secrets.token_hex(8)))

    @classmethod
    @abstractmethod
    def _speaking(cls, settings: AliasSettings) -> Self:
        """A store without connections."""

    @classmethod
    def from_settings(cls, settings: AliasSettings) -> Self:
        store = cls._speaking(settings)
        store._connections = OwnConnections(cls._maker(settings, redis.ConnectionPool))
        return store

    @classmethod
    def _maker(cls, settings: AliasSettings, pool: Any) -> Maker:
        """Makes the connections of a pool of this class, blocking or asyncio."""
        return maker(cls._for_driver(settings), pool)

    @staticmethod
    def _for_driver(settings: AliasSettings) -> AliasSettings:
        """The settings without the store's own options."""
        return replicas.divided(settings)[1]

    def for_asyncio(self) -> Self:
        """Another store, because each event loop has an inbox of its own."""
        return type(self).from_settings(self._settings)

    def wire(self) -> RedisWire:
        return RedisWire(self._connections, self.inbox)

    def async_wire(self, *, is_shared: bool = False) -> AsyncWire:
        import redis.asyncio

        from lockkit.stores.redis.aio_wire import AsyncRedisWire

        return AsyncRedisWire(self._maker(self._settings, redis.asyncio.ConnectionPool), self.inbox)

    def acquire(self, request: Request, has_listened: bool = False) -> Step[Grant | Busy | Gone]:
        if (late := self._late(request)) is not None:
            yield from self._keep(late)
        try:
            command = self._queueing(request) if has_listened else self._attempt(request)
            if self._replicas:
                (reply,) = yield from self._confirmed([command], counts=is_fence)
            else:
                reply = yield from call(command)
            if not self._is_announced:
                yield from self._announce()
        except BaseException:
            if request.mode is not Mode.POLL:  # nobody will wait for a message
                self.inbox.forget(request.token)
            raise
        answer = self.answered(request, reply)
        if type(answer) is Busy and not answer.full and (yield from self.listen(request)):
            return (yield from self.acquire(request, has_listened=True))
        if type(answer) is Grant and type(reply) is not int:  # it was granted earlier
            return answer if (yield from self._stays(request)) else Gone()
        return answer

    def _stays(self, request: Request) -> Step[bool]:
        """Whether an earlier grant is still there. With ``wait_replicas``, extend it, so that the
        replicas confirm it: ``WAIT`` covers only what its own connection has written."""
        if not self._replicas:
            return True
        (renewal,) = yield from self.extend([request])
        if renewal.error is not None:
            raise renewal.error
        return renewal.left is not None

    def _attempt(self, request: Request) -> Command:
        """Only a claim that listens may queue; one that finds the name free need not listen. A poll
        names the channel only while somebody listens, or the store would take it for dead."""
        inbox, mode, channel = self.inbox, request.mode, self.inbox.channel
        if inbox.is_forbidden:
            channel = NO_CHANNEL
        elif inbox.pulse is None:
            channel = NO_CHANNEL
            mode = TRY if mode is ENQUEUE else mode
        if mode is ENQUEUE:
            inbox.expect(request.token)
        return self._language.acquire(request, mode, channel)

    def _queueing(self, request: Request) -> Command:
        """For a claim that has listened. If the subscription is lost again, it queues without a
        channel: the wire subscribes anew while it waits, and a poll after that names it."""
        if self.inbox.pulse is not None:
            return self._attempt(request)
        self.inbox.expect(request.token)
        return self._language.acquire(request, ENQUEUE, NO_CHANNEL)

    def answered(self, request: Request, reply: int | bytes) -> Grant | Busy | Gone:
        if type(reply) is int:  # the fence: most often
            self.inbox.waiting.pop(request.token, None)
            return NEW(Grant, (request.token, reply, request.ttl))
        answer = self._read(request, cast(bytes, reply))
        if type(answer) is not Busy or answer.full:
            if request.mode is Mode.POLL and self.inbox.expects(request.token):
                self.inbox.doubt()
            self.inbox.forget(request.token)
        return answer

    def _late(self, request: Request) -> Request | None:
        """The claim that was handed this name by a message, if the grant is no longer new."""
        handed = self._handed.get(request.name)
        return None if handed is None or handed[1] > now() else handed[0]

    def _keep(self, request: Request) -> Step[None]:
        """Extend a grant to another task or thread, which this busy process kept from doing so.
        Otherwise the store would take it for dead, and grant the name to the next one."""
        with suppress(BackendError):
            yield from self.extend([request])

    def _read(self, request: Request, reply: bytes) -> Grant | Busy | Gone:
        return read_acquire(request, reply)

    def listen(self, request: Request) -> Step[bool]:
        inbox = self.inbox
        if request.mode is not Mode.ENQUEUE or inbox.is_forbidden or inbox.expects(request.token):
            return False
        if not inbox.is_open:
            with suppress(BackendUnavailable):  # as if the subscription were lost again
                yield Listen(inbox)
        return True

    def asked(self, request: Request) -> Exchange | None:
        if self._replicas or not self._is_announced or (self._handed and self._late(request)):
            return None
        return NEW(Exchange, (self._attempt(request).packed, None))

    def returned(self, request: Request) -> Exchange:
        if self._handed:
            self._heard_of(request)
        return NEW(Exchange, (self._language.release(request).packed, None))

    def taken_back(self, request: Request, reply: int) -> Release:
        return RELEASES[reply]

    def unanswered(self, request: Request, error: BaseException) -> BaseException | None:
        self.inbox.forget(request.token)
        return None if isinstance(error, NoScriptError) else error

    def _announce(self) -> Step[None]:
        """Called after the first claim. Default: tells nobody."""
        self._is_announced = True
        return at_once(None)

    def _heard_of(self, request: Request) -> None:
        handed = self._handed.get(request.name)
        if handed is not None and handed[0].token == request.token:
            self._handed.pop(request.name, None)  # unless another thread has just done so

    def release(self, request: Request) -> Step[Release]:
        self._heard_of(request)
        if request.queued:
            self.inbox.forget(request.token)
        reply: int = yield from call(self._language.release(request))
        return Release.ABSENT if request.queued else RELEASES[reply]

    def extend(self, requests: Sequence[Request]) -> Step[list[Renewal]]:
        """One script per bucket, all at once. If one of them is refused, the others count."""
        if self._handed:
            for request in requests:
                self._heard_of(request)
        batches = list(self._language.extend(requests))
        renewals = [Renewal(None)] * len(requests)
        replies = yield from self._extended([command for command, _ in batches])
        for (_, positions), reply in zip(batches, replies, strict=True):
            if isinstance(reply, LockError):
                for position in positions:
                    renewals[position] = Renewal(None, reply)
            else:
                read_extend(requests, positions, reply, renewals)
        return renewals

    def _extended(self, commands: Sequence[Command]) -> Step[list[Any]]:
        """The replies; for a bucket that is refused, its error."""
        return self._confirmed(commands, Apart)

    def _confirmed(
        self,
        commands: Sequence[Command],
        kind: type[list[bytes]] = list,
        counts: Callable[[Any], bool] = lambda _: True,
    ) -> Step[list[Any]]:
        timeout = self._connections.fresh.arguments["socket_timeout"]
        return replicas.confirmed(commands, self._replicas, timeout, kind, counts)

    def wait(self, request: Request, seconds: float, busy: Busy) -> Step[Grant | None]:
        """A grant by message lasts only until the waiter's last sign of life runs out."""
        if self.inbox.is_forbidden:
            yield Park(Signal(), min(seconds, POLL))
            self.inbox.polled()
            return None
        fence = yield from self.inbox.wait(request.token, busy.ticket, seconds)
        if fence is None:
            return None
        self.inbox.forget(request.token)
        if not (yield from self._stays(request)):
            return None
        left, moment = min(request.ttl, alive_for(request.ttl)), now()
        for name, (other, new_until) in list(self._handed.items()):
            if new_until + other.ttl < moment:  # nobody has kept it or given it back
                self._handed.pop(name, None)
        self._handed[request.name] = request, moment + left / 4
        return Grant(request.token, fence, left)

    def database(self) -> str:
        return self._connections.fresh.described()

    def check(self) -> Step[None]:
        yield from look(pack(b"PING"))

    def health(self) -> Step[list[Finding]]:
        return self.of_each(eviction)

    def of_each(self, ask: Callable[[], Step[list[Finding]]]) -> Step[list[Finding]]:
        """The findings of each of its servers; here there is one."""
        return ask()

    def server(self) -> Step[str | None]:
        """An identity that no other server has; None if the user may not ask."""
        return server()


def is_fence(reply: object) -> bool:
    """Whether it is the reply to a claim that was just granted. One that waits or was refused has
    nothing that a fail-over could give to somebody else."""
    return type(reply) is int
