"""A store under test and how it is reached, for the conformance suite.

A store's tests give the suite a Target: its URL, and for a server the methods that break it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple

from lockkit.testing.proxy import FaultProxy
from lockkit.testing.servers import (
    MariaDBServer,
    PostgresServer,
    RedisServer,
    Server,
    ZooKeeperServer,
)


class Proxied(NamedTuple):
    """A way to the store through a proxy that can fail."""

    url: str
    proxy: FaultProxy


class Target:
    """One store and how a process reaches it.

    ``options`` go to every ``lockkit.connect``. Worker processes get ``environment`` on top of
    ours. The first thing that they do is to call ``setup``, a "module:function" such as
    "django:setup".
    """

    def __init__(
        self,
        url: str,
        *,
        options: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        setup: str = "",
    ) -> None:
        self.url = url
        self.options = dict(options or {})
        self.environment = dict(environment or {})
        self.setup = setup

    def options_for(self, url: str | None) -> dict[str, Any]:
        """The options of a client for this URL. The URL of ``proxied`` may need others."""
        return self.options


class ServerTarget(Target):
    """A store behind a socket. Subclasses say how their server is told to fail."""

    writes: ClassVar[bytes] = b""
    """Bytes that every request that changes the store contains. Empty if a step sends no other
    requests."""

    reconnects: ClassVar[bool] = False
    """Whether its driver reconnects by itself: then the greeting of a new connection does not count
    as a request of a step."""

    persists: bool | None = None
    """Whether leases survive ``restart``. None: either may happen."""

    def __init__(self, server: Server, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self.server = server

    @contextmanager
    def proxied(self) -> Iterator[Proxied]:
        """The store through a proxy. Other clients still reach it directly."""
        with FaultProxy("127.0.0.1", self.server.port) as proxy:
            yield Proxied(self.url.replace(f":{self.server.port}", f":{proxy.port}"), proxy)

    def restart(self) -> None:
        """Shut down cleanly and start again. The store decides which data are kept."""
        self.server.restart()

    def kill_subscriptions(self) -> None:
        """Close the connections on which waiters get messages, if it sends any."""
        raise NotImplementedError


class SessionTarget(ServerTarget):
    """A server that ends a lease with the connection on which it was granted."""


class ScriptedTarget(ServerTarget):
    """A server that caches scripts."""

    def forget_scripts(self) -> None:
        """Drop our scripts from the server's cache."""
        raise NotImplementedError


class RedisTarget(ScriptedTarget):
    """Redis, Valkey, and servers with the same protocol; over TCP, TLS or a unix socket."""

    server: RedisServer

    @contextmanager
    def proxied(self) -> Iterator[Proxied]:
        if self.url.startswith("unix://"):
            with FaultProxy(str(self.server.socket_path)) as proxy:
                yield Proxied(f"redis://127.0.0.1:{proxy.port}/0", proxy)
            return
        port = self.server.tls_port if self.url.startswith("rediss://") else self.server.port
        with FaultProxy("127.0.0.1", port) as proxy:
            yield Proxied(self.url.replace(f":{port}", f":{proxy.port}"), proxy)

    def __init__(self, server: RedisServer, url: str | None = None, **options: Any) -> None:
        super().__init__(server, url or server.url, **options)

    def kill_subscriptions(self) -> None:
        with self.server.client() as client:
            client.execute_command("CLIENT KILL TYPE pubsub")

    def forget_scripts(self) -> None:
        with self.server.client() as client:
            client.execute_command("SCRIPT FLUSH")


class TableTarget(ServerTarget):
    """A table in the database of a server."""

    writes: ClassVar[bytes] = b"UPDATE lockkit_lock"  # the first write of a step; not a deletion


class PostgresTarget(TableTarget):
    """A table in PostgreSQL."""

    server: PostgresServer
    writes: ClassVar[bytes] = b"lockkit_write_"  # prepared statements

    def kill_subscriptions(self) -> None:
        self.server.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN %'"
        )


class MariaDBTarget(TableTarget):
    """A table in MariaDB."""

    server: MariaDBServer
    writes: ClassVar[bytes] = b"EXECUTE lockkit_"  # prepared statements


class ZooKeeperTarget(ServerTarget):
    """One ZooKeeper server. Its clients connect through a proxy, which can cut their connections,
    because messages to waiters come on these and on no others."""

    server: ZooKeeperServer
    writes: ClassVar[bytes] = b"/locks/"
    reconnects: ClassVar[bool] = True

    def __init__(self, server: ZooKeeperServer, proxy: FaultProxy, **options: Any) -> None:
        url = server.url.replace(f":{server.port}", f":{proxy.port}")
        super().__init__(server, url, **options)
        self._proxy = proxy

    @contextmanager
    def proxied(self) -> Iterator[Proxied]:
        with FaultProxy("127.0.0.1", self.server.port) as proxy:
            yield Proxied(self.server.url.replace(f":{self.server.port}", f":{proxy.port}"), proxy)

    def kill_subscriptions(self) -> None:
        self._proxy.cut()
