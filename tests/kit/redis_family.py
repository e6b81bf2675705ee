"""Redis with replicas: watched by Sentinels. Real processes on private ports."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar, Self

from lockkit.model.clock import now
from lockkit.testing.proxy import FaultProxy
from lockkit.testing.servers import RedisServer, Server
from lockkit.testing.store import Proxied, RedisStore

HOST = "127.0.0.1"
SERVICE = "shop"
SOON = 60.0
CALM = 60_000
"""Milliseconds: Sentinels leave a server alone that is silent for less."""

WITHOUT_DELAY = ("repl-diskless-sync-delay 0", "repl-ping-replica-period 1")


def until(condition: Callable[[], Any], what: str) -> None:
    deadline = now() + SOON
    while not condition():
        assert now() < deadline, f"not within {SOON:g} s: {what}"


def together(stack: ExitStack, servers: Sequence[Server]) -> None:
    """Start them side by side: what takes time is their own start."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(len(servers)) as threads:
        for server in [*threads.map(stack.enter_context, servers)]:
            assert server.pid


class Member(RedisServer):
    """One of a group, with the certificate of the group; it speaks TLS to the others as well."""

    def __init__(self, *options: str, like: RedisServer | None, **kind: Any) -> None:
        super().__init__(*options, **kind)
        self.like = like or self

    def _configuration(self) -> list[str]:
        return [*super()._configuration(), *(["tls-replication yes"] if self.tls_port else [])]

    def _make_certificate(self) -> None:
        if self.like is self:
            super()._make_certificate()
            return
        for name in ("server.crt", "server.key"):
            shutil.copy(self.like.directory / name, self.directory / name)

    @property
    def address(self) -> str:
        return f"{HOST}:{self.tls_port or self.port}"


class SentinelServer(Member):
    """One Sentinel, which watches a master as ``shop``."""

    ready: ClassVar[str] = "+monitor master"

    def __init__(self, master: Member, *options: str, **kind: Any) -> None:
        super().__init__(*options, like=master, **kind)
        self.master = master

    def command(self) -> Sequence[str]:
        return [*super().command(), "--sentinel"]

    def _configuration(self) -> list[str]:
        watched = self.master.address.replace(":", " ")
        password = self.master.password
        return [
            *(line for line in super()._configuration() if not line.startswith("save")),
            f"sentinel monitor {SERVICE} {watched} 2",
            f"sentinel down-after-milliseconds {SERVICE} {CALM}",
            f"sentinel failover-timeout {SERVICE} 5000",
            *([f"sentinel auth-pass {SERVICE} {password}"] if password else []),
            *([f"sentinel sentinel-pass {self.password}"] if self.password else []),
        ]


class SentinelGroup:
    """A master, a replica and three Sentinels. ``with``. ``guarded``: all of them speak TLS to
    clients and to one another, and the Sentinels have another password than the servers."""

    def __init__(self, *options: str, guarded: bool = False) -> None:
        servers: dict[str, Any] = {"tls": True, "password": "of-servers"} if guarded else {}
        asked: dict[str, Any] = {"tls": True, "password": "of-sentinels"} if guarded else {}
        login = [f"masterauth {servers['password']}"] if guarded else []
        self.guarded = guarded
        self.master = Member(*WITHOUT_DELAY, *login, *options, like=None, **servers)
        follows = f"replicaof {self.master.address.replace(':', ' ')}"
        self.replica = Member(
            *WITHOUT_DELAY, *login, *options, follows, like=self.master, **servers
        )
        self.sentinels = [SentinelServer(self.master, **asked) for _ in range(3)]
        self._stack = ExitStack()

    @property
    def url(self) -> str:
        scheme, login = ("rediss", ":of-servers@") if self.guarded else ("redis", "")
        hosts = ",".join(sentinel.address for sentinel in self.sentinels)
        return f"{scheme}+sentinel://{login}{hosts}/{SERVICE}"

    @property
    def options(self) -> dict[str, Any]:
        """OPTIONS for the URL."""
        patient = {"socket_timeout": 10.0}
        if not self.guarded:
            return {"sentinel": patient}
        trusted = {"ssl_ca_certs": str(self.master.certificate)}
        return {**trusted, "sentinel": {**patient, "password": "of-sentinels"}}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.master)
            together(stack, [self.replica, *self.sentinels])
            self._stack = stack.pop_all()
        until(self.is_in_touch, "the Sentinels know each other and the replica")
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def is_in_touch(self) -> bool:
        return all(
            state["num-slaves"] >= 1 and state["num-other-sentinels"] == 2
            for state in map(self.state, self.sentinels)
        )

    @staticmethod
    def state(sentinel: SentinelServer) -> dict[str, Any]:
        with sentinel.client() as client:
            return dict(client.sentinel_master(SERVICE))

    def fail_over_after(self, milliseconds: int) -> None:
        """Sentinels take a master that is silent for so long to be down."""
        for sentinel in self.sentinels:
            with sentinel.client() as client:
                client.sentinel_set(SERVICE, "down-after-milliseconds", milliseconds)


class SentinelStore(RedisStore):
    """The master that the Sentinels name."""

    def __init__(self, group: SentinelGroup, **options: Any) -> None:
        self._ways: dict[str | None, dict[str, Any]] = {}
        super().__init__(group.master, group.url, options={"options": {**group.options, **options}})

    @contextmanager
    def proxied(self) -> Iterator[Proxied]:
        """The Sentinels are asked directly; the master is reached through the proxy."""
        with FaultProxy(HOST, self.server.tls_port or self.server.port) as proxy:
            url = f"{self.url}?client_name=through-{proxy.port}"
            self._ways[url] = {"address_remap": lambda _: (HOST, proxy.port)}
            yield Proxied(url, proxy)

    def options_for(self, url: str | None) -> dict[str, Any]:
        """Other addresses than those that the servers know of one another."""
        options = {**self.options.get("options", {}), **self._ways.get(url, {})}
        return {**self.options, "options": options}
