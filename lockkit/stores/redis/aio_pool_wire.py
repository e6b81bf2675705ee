"""The asyncio wire over the pool of somebody else's client. It leaves nothing open behind.

Each exchange borrows a connection, as each of the client's own commands does. A subscription is
made when somebody waits, and ends with the last waiter: closing the client would not close it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from redis.exceptions import RedisError, ResponseError

from lockkit.engine.effects import Exchange, Listen
from lockkit.stores.redis.aio_wire import AsyncRedisWire
from lockkit.stores.redis.connections import ANY_COMMAND, translate_io_error
from lockkit.stores.redis.failures import all_checked, checked, is_demoted, not_connected
from lockkit.stores.redis.settings import SOCKET_TIMEOUT, Connection, Maker
from lockkit.stores.redis.subscription import Inbox


class AsyncPoolWire(AsyncRedisWire):
    """A payload is one packed command, or a list of them, which are sent at once."""

    def __init__(self, pool: Any, inbox: Inbox) -> None:
        super().__init__(Maker(pool), inbox)
        self._pool = pool

    def _start(self) -> None:
        super()._start()
        #: tasks in ``listen``; each starts to wait in the loop turn in which ``listen`` returns
        self._asking = 0

    async def exchange(self, effect: Exchange) -> Any:
        payload = effect.payload
        if type(payload) is bytes:
            return checked((await self._converse([payload]))[0])
        return all_checked(payload, await self._converse(payload))

    async def _converse(self, packed: list[bytes]) -> list[Any]:
        try:
            connection = await self._pool.get_connection(*ANY_COMMAND)
        except (RedisError, OSError) as error:
            raise not_connected(error, self._pool.connection_kwargs) from error
        try:
            limit = SOCKET_TIMEOUT if connection.socket_timeout is None else None
            async with asyncio.timeout(limit):
                await connection.send_packed_command(b"".join(packed), check_health=False)
                replies = [await _read(connection) for _ in packed]
            if is_demoted(replies):  # as in ``aio_wire``
                await connection.disconnect(nowait=True)
                self._end_mail()
            return replies
        except BaseException as error:  # a late reply would be taken for another's
            await connection.disconnect(nowait=True)
            translate_io_error(error)
            raise
        finally:
            await self._pool.release(connection)

    async def listen(self, effect: Listen) -> None:
        self._asking += 1
        try:
            await super().listen(effect)
        finally:
            self._asking -= 1

    async def hang_up(self) -> None:
        """End the subscription, or the task that makes it, unless somebody waits or asks for it."""
        line, listening = self._mail, self._listening
        if (line is None and listening is None) or self._asking or self._inbox.is_awaited:
            return
        self._mail = self._listening = self._inbox.pulse = None
        self._is_repeated = False
        if line is not None:
            line.abort()
        if listening is not None:
            listening.cancel()
            await asyncio.wait([listening])
        await asyncio.sleep(0)  # meanwhile the loop closes its socket


async def _read(connection: Connection) -> Any:
    """A reply; an error reply as a value, because the others must be read, too."""
    try:
        return await connection.read_response(disable_decoding=True)
    except ResponseError as error:
        return error
