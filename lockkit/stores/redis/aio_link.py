"""Connections of one event loop to one server: the twin of ``connections``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoScriptError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as ConnectionClosed

from lockkit.model.errors import OutcomeUnknown
from lockkit.stores.redis.failures import from_reply, lost_on_the_way, not_connected
from lockkit.stores.redis.protocol import Command, load_scripts
from lockkit.stores.redis.settings import Connection, Maker

__all__ = ["Connection", "Link", "abort", "connect", "drop", "send"]


CONNECTS_AT_ONCE = 8


class Link:
    """Connections to one server: each is used for one exchange at a time."""

    def __init__(self, make: Maker) -> None:
        self.fresh = make
        self._idle: list[Connection] = []
        self._keeps = True
        self._turns = asyncio.Semaphore(CONNECTS_AT_ONCE)
        # Of others before us, and then our own.
        self._turn_seconds = 2 * make.arguments["socket_connect_timeout"]

    async def look(self, request: Callable[[], Awaitable[Any]]) -> Any:
        """A request that only reads: once more, if its connection was stale."""
        try:
            return await request()
        except OutcomeUnknown:
            return await request()

    async def call(self, command: Command) -> Any:
        """Run a script; load it first if the server does not have it."""
        try:
            return (await self.pipeline([command.packed]))[0]
        except NoScriptError:
            return (await self.load_and_run([command]))[0]

    async def load_and_run(self, commands: Sequence[Command]) -> list[Any]:
        """At once, so that a server whose scripts are flushed again has no time for it."""
        try:
            loads = load_scripts(commands)
            packed = [command.packed for command in commands]
            return (await self.pipeline([*loads, *packed]))[len(loads) :]
        except NoScriptError as error:
            raise from_reply(error) from error

    async def pipeline(self, packed: Sequence[bytes]) -> list[Any]:
        """Send some commands at once and read their replies. Raises lockkit's errors, or
        NoScriptError, which says that the script was not run."""
        connection = self._idle.pop() if self._idle else await self._one_more()
        try:
            if not connection.is_connected:
                await connect(connection)
            await send(connection, packed)
            replies = [await _read(connection) for _ in packed]
        except BaseException as error:  # cancelled: its reply would be taken for that of another
            await self._discard(connection)
            if isinstance(error, (BusyLoadingError, AuthenticationError)):
                raise from_reply(error) from error
            if isinstance(error, (RedisError, OSError)):
                raise lost_on_the_way(error) from error
            raise  # cancelled between request and reply: the connection cannot be used again
        await self._give(connection)
        for reply in replies:
            if isinstance(reply, NoScriptError):
                raise reply
            if isinstance(reply, ResponseError):
                raise from_reply(reply) from reply
        return replies

    async def _give(self, connection: Connection) -> None:
        if self._keeps:
            self._idle.append(connection)
        else:
            await drop(connection)

    async def _one_more(self) -> Connection:
        """A new connection, or the one that somebody gave back while this task waited its turn.

        A server that is asked for hundreds at once, over TLS on a busy machine, makes none in time.
        """
        try:
            async with asyncio.timeout(self._turn_seconds), self._turns:
                if self._idle:
                    return self._idle.pop()
                connection = self.fresh()
                try:
                    await connect(connection)
                except BaseException:  # cancelled: nobody else knows of the connection
                    await drop(connection)
                    raise
                return connection
        except TimeoutError as error:
            raise not_connected(error) from error

    async def _discard(self, connection: Connection) -> None:
        """The idle ones are probably stale as well: the next try must not meet another of them."""
        stale, self._idle = [connection, *self._idle], []
        for one in stale:
            await drop(one)

    async def close(self) -> None:
        """Requests that come later, or are under way, have a connection each."""
        self._keeps = False
        idle, self._idle = self._idle, []
        for connection in idle:
            await drop(connection)
        await asyncio.sleep(0)  # in which the loop closes their sockets


async def connect(connection: Connection) -> None:
    connection.redis_connect_func = _greet
    try:
        await connection.connect()
    except (RedisError, OSError) as error:
        await drop(connection)
        raise not_connected(error) from error
    connection.lockkit_transport = connection._writer.transport  # redis-py may forget it


async def _greet(connection: Connection) -> None:
    """As redis-py does, but what it sends goes out in one piece from now on.

    ``writelines`` of a transport that the other side has just closed leaves its file descriptor
    with the event loop, on CPython 3.12 and 3.13 (gh-136234): the next connection that gets the
    same number then never hears that it is connected.
    """
    transport = connection._writer.transport
    connection._writer.writelines = partial(_write_joined, transport)
    await connection.on_connect()
    if connection.password is None:  # see _ask_whether_known of the blocking twin
        await connection.send_command("PING", check_health=False)
        with suppress(ResponseError):
            await connection.read_response(disable_decoding=True)


def _write_joined(transport: asyncio.WriteTransport, pieces: Sequence[bytes]) -> None:
    transport.write(b"".join(pieces))


async def drop(connection: Connection) -> None:
    """Close it now, whatever has been done to it already.

    redis-py closes it after an error as well, but has no way to do so at once: over TLS that waits
    for the server, which may be silent, and maybe longer than the event loop runs.
    """
    abort(connection)
    connection.lockkit_transport = None
    await connection.disconnect(nowait=True)


def abort(connection: Connection) -> None:
    """End it now; whoever reads it hears of the end."""
    transport = getattr(connection, "lockkit_transport", None)
    if transport is None and connection._writer is not None:
        transport = connection._writer.transport
    if transport is not None:
        transport.abort()


async def send(connection: Connection, packed: Sequence[bytes]) -> None:
    """Raises RedisError."""
    task = asyncio.current_task()
    heard = task.cancelling() if task else 0
    try:
        await connection.send_packed_command(packed, check_health=False)
    except AttributeError as error:
        # It was closed by another task meanwhile.
        raise ConnectionClosed("the connection is closed") from error
    if task and task.cancelling() > heard:  # swallowed in there, by asyncio.wait_for on 3.11
        raise asyncio.CancelledError


async def _read(connection: Connection) -> Any:
    """A reply; an error reply as a value, because the others of the pipeline must be read, too."""
    try:
        return await connection.read_response(disable_decoding=True)
    except ResponseError as error:
        return error
