"""Real servers on private ports of 127.0.0.1, with their data in a temporary directory.

>>> with RedisServer() as server:                                            # doctest: +SKIP
...     locks = lockkit.connect(server.url)

A server that is not installed raises MissingServer, which names the command that installs it.
Servers end with the process that started them, even if that process is killed. Linux only.

They ask for no password. Other users of the machine can reach them while they run, and PostgreSQL
runs programs for them (COPY … FROM PROGRAM), as the user who started it, or as postgres for root.
"""

from __future__ import annotations

from lockkit.testing.servers.base import MissingServer, Server, ServerFailed
from lockkit.testing.servers.mariadb import MariaDBServer
from lockkit.testing.servers.postgres import PostgresServer
from lockkit.testing.servers.redis import RedisServer, ValkeyServer
from lockkit.testing.servers.zookeeper import ZooKeeperServer

__all__ = [
    "MariaDBServer",
    "MissingServer",
    "PostgresServer",
    "RedisServer",
    "Server",
    "ServerFailed",
    "ValkeyServer",
    "ZooKeeperServer",
]
