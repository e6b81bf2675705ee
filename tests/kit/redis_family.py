"""Redis with replicas: watched by Sentinels, or a Cluster. Real processes on private ports."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from typing import Any, ClassVar, Self

import redis

from lockkit.model.clock import now
from lockkit.testing.proxy import FaultProxy, Target
from lockkit.testing.servers import RedisServer, Server, ValkeyServer
from lockkit.testing.servers.base import free_port
from lockkit.testing.targets import Proxied, RedisTarget

HOST = "127.0.0.1"
SERVICE = "shop"
SOON = 60.0
PAUSE = 0.05
CALM = 60_000
"""Milliseconds: Sentinels do nothing about a server that is silent for less."""

OFTEN = 100
NEVER = 3_600_000
SENTINELS_WORK = (
    (
        "info-period",
        OFTEN,
    ),  # not 10 s: they find a replica when they ask again
    ("publish-period", OFTEN),  # 2 s; and a demoted master is told so after four of these
    ("tilt-trigger", NEVER),  # 2 s: after a pause of theirs they do nothing for half a minute
)
"""Milliseconds."""

WITHOUT_DELAY = ("repl-diskless-sync-delay 0", "repl-ping-replica-period 1")


def until(condition: Callable[[], Any], what: str) -> None:
    deadline = now() + SOON
    is_last = False
    while not condition():
        assert not is_last, f"not within {SOON:g} s: {what}"
        time.sleep(PAUSE)
        is_last = now() > deadline


def together(stack: ExitStack, servers: Sequence[Server]) -> None:
    """Start them side by side: what takes time is their own start."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(len(servers)) as threads:
        for server in [*threads.map(stack.enter_context, servers)]:
            assert server.pid


class Member(RedisServer):
    """One of a group, with the certificate of the group: it speaks TLS to the others as well."""

    def __init__(
        self, *options: str, like: RedisServer | None, valkey: bool = False, **kind: Any
    ) -> None:
        super().__init__(*options, **kind)
        self.valkey = valkey
        self.like = like or self

    def program(self) -> str:
        return (ValkeyServer if self.valkey else RedisServer).program(self)  # type: ignore[arg-type]

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
    """A master, a replica and three Sentinels. Use ``with``. ``guarded``: all speak TLS to
    clients and to one another, and the Sentinels have another password than the servers."""

    def __init__(self, *options: str, guarded: bool = False, valkey: bool = False) -> None:
        servers: dict[str, Any] = {"tls": True, "password": "of-servers"} if guarded else {}
        asked: dict[str, Any] = {"tls": True, "password": "of-sentinels"} if guarded else {}
        servers["valkey"] = asked["valkey"] = valkey
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
        self._set_debug(*SENTINELS_WORK)
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

    def demotes_nobody(self) -> None:
        """A server that comes back as a master stays one, although the Sentinels know another."""
        self._set_debug(("publish-period", NEVER))

    def _set_debug(self, *settings: tuple[str, int]) -> None:
        for sentinel in self.sentinels:
            with sentinel.client() as client:
                client.execute_command("SENTINEL DEBUG", *chain(*settings))

    def fail_over_after(self, milliseconds: int) -> None:
        """Sentinels take a master that is silent for so long to be down."""
        for sentinel in self.sentinels:
            with sentinel.client() as client:
                client.sentinel_set(SERVICE, "down-after-milliseconds", milliseconds)


class Group(RedisTarget):
    """Several servers, all of which may know a user ``app``."""

    members: Sequence[Member]

    @property
    def url_of_app(self) -> str:
        scheme, _, rest = self.url.partition("://")
        return f"{scheme}://app@{rest.rpartition('@')[2]}"

    def options_of_app(self, password: Callable[[], str]) -> dict[str, Any]:
        """OPTIONS that know its password."""
        return {**self.options["options"], "password": password}

    def set_password_of_app(self, password: str) -> None:
        """Whoever is connected as this user has to connect again."""
        for member in self.members:
            with member.client() as admin:
                rules = ("on", "resetpass", f">{password}", "~*", "&*", "+@all")
                admin.execute_command("ACL SETUSER", "app", *rules)
                admin.execute_command("CLIENT KILL USER", "app")


class SentinelStore(Group):
    """The master that the Sentinels name."""

    def __init__(self, group: SentinelGroup, query: str = "", **options: Any) -> None:
        self.members = [group.master, group.replica, *group.sentinels]
        self._ways: dict[str | None, dict[str, Any]] = {}
        kept = {"options": {**group.options, **options}}
        super().__init__(group.master, f"{group.url}?{query}", options=kept)

    def options_of_app(self, password: Callable[[], str]) -> dict[str, Any]:
        """The user and its password are the same at the Sentinels."""
        options = super().options_of_app(password)
        sentinel = {**options["sentinel"], "username": "app", "password": password}
        return {**options, "sentinel": sentinel}

    @contextmanager
    def proxied(self) -> Iterator[Proxied]:
        """The Sentinels are asked directly; the master is reached through the proxy."""
        with FaultProxy(HOST, self.server.tls_port or self.server.port) as proxy:
            url = f"{self.url}&client_name=through-{proxy.port}"
            self._ways[url] = {"address_remap": lambda _: (HOST, proxy.port)}
            yield Proxied(url, proxy)

    def options_for(self, url: str | None) -> dict[str, Any]:
        """Other addresses than those that the servers know of one another."""
        options = {**self.options.get("options", {}), **self._ways.get(url, {})}
        return {**self.options, "options": options}


class ClusterServer(Member):
    """One server of a cluster; alone until somebody tells it of the others."""

    def __init__(self, like: Member | None, **kind: Any) -> None:
        super().__init__(*WITHOUT_DELAY, like=like, **kind)
        self.bus = free_port()
        self.name = ""
        self.patience = CALM

    def _configuration(self) -> list[str]:
        return [
            *super()._configuration(),
            "cluster-enabled yes",
            f"cluster-port {self.bus}",
            f"cluster-node-timeout {self.patience}",
            "cluster-replica-validity-factor 0",  # however slow this machine, it becomes the master
            *([f"masterauth {self.password}"] if self.password else []),
            *(["tls-cluster yes"] if self.tls_port else []),
        ]

    def says(self, *words: object) -> Any:
        with self.client() as client:
            return client.execute_command(*words)


class ClusterGroup:
    """Three masters and a replica of each. Use ``with``. You pause and restart it as one server."""

    port = 0

    def __init__(self, *, guarded: bool = False, valkey: bool = False) -> None:
        kind: dict[str, Any] = {"tls": True, "password": "of-servers"} if guarded else {}
        kind["valkey"] = valkey
        self.guarded = guarded
        first = ClusterServer(None, **kind)
        self.nodes = [first, *(ClusterServer(first, **kind) for _ in range(5))]
        self.masters, self.replicas = self.nodes[:3], self.nodes[3:]
        self._stack = ExitStack()

    @property
    def url(self) -> str:
        scheme, login = ("rediss", ":of-servers@") if self.guarded else ("redis", "")
        return f"{scheme}+cluster://{login}{','.join(node.address for node in self.masters)}"

    @property
    def options(self) -> dict[str, Any]:
        return {"ssl_ca_certs": str(self.masters[0].certificate)} if self.guarded else {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.nodes[0])
            together(stack, self.nodes[1:])
            self._stack = stack.pop_all()
        first_port = self.nodes[0].tls_port or self.nodes[0].port
        for number, node in enumerate(self.nodes):
            node.name = node.says("CLUSTER MYID").decode()
            node.says("CLUSTER SET-CONFIG-EPOCH", number + 1)
            node.says("CLUSTER MEET", HOST, first_port, self.nodes[0].bus)
        for number, master in enumerate(self.masters):
            first, after = 16384 * number // 3, 16384 * (number + 1) // 3
            master.says("CLUSTER ADDSLOTSRANGE", first, after - 1)
        until(lambda: all(self.knows(node) == 6 for node in self.nodes), "all know each other")
        for master, replica in zip(self.masters, self.replicas, strict=True):
            replica.says("CLUSTER REPLICATE", master.name)
        self.wait_until_ok()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            for node in self.nodes:
                error.add_note(f"{node.name}: {_seen_by(node)}")
        self._stack.close()

    @staticmethod
    def knows(node: ClusterServer) -> int:
        lines = node.says("CLUSTER NODES")
        return sum("handshake" not in flags["flags"] for flags in lines.values())

    def wait_until_ok(self) -> None:
        until(self.is_ok, "the cluster is up")

    def is_ok(self) -> bool:
        def replicates(node: ClusterServer) -> bool:
            with node.client() as client:
                found = client.info("replication")
            return found["role"] == "master" or found["master_link_status"] == "up"

        states = (node.says("CLUSTER INFO") for node in self.nodes)
        return (
            all(state["cluster_state"] == "ok" for state in states)
            and all(map(replicates, self.nodes))
            and sum(replicates_of(node) for node in self.nodes) == 3
        )

    def flush(self) -> None:
        for master in self.masters:
            master.flush()

    def restart(self, *, kill: bool = False) -> None:
        for master in self.masters:
            master.restart(kill=kill)
        self.wait_until_ok()

    def pause(self) -> None:
        for master in self.masters:
            master.pause()

    def resume(self) -> None:
        for master in self.masters:
            master.resume()

    def fail_over_after(self, milliseconds: int) -> None:
        """Also once those are started that are not running now."""
        for node in self.nodes:
            node.patience = milliseconds
            if node.is_running:
                with node.client() as client:
                    client.config_set("cluster-node-timeout", milliseconds)


def _seen_by(node: ClusterServer) -> object:
    if not node.is_running:
        return "is down"
    node.resume()
    try:
        return {name: node.says(name) for name in ("CLUSTER NODES", "CLUSTER INFO", "ROLE")}
    except redis.RedisError as error:
        return error


def replicates_of(node: ClusterServer) -> bool:
    with node.client() as client:
        return bool(client.info("replication")["role"] == "slave")


class ClusterProxy(FaultProxy):
    """A way through to each server; a fault happens at whichever comes first."""

    def __init__(self, targets: Sequence[Target]) -> None:
        super().__init__(*targets[0])
        self._targets = targets
        self._listeners: list[socket.socket] = []
        self.ways: dict[Target, Target] = {}

    def start(self) -> Self:
        super().start()
        self.ways[self._targets[0]] = HOST, self.port
        for target in self._targets[1:]:
            listener = socket.create_server((HOST, 0))
            self._listeners.append(listener)
            self.ways[target] = HOST, listener.getsockname()[1]
            threading.Thread(target=self._accept, args=(listener, target), daemon=True).start()
        return self

    def stop(self) -> None:
        for listener in self._listeners:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        super().stop()


class ClusterStore(Group):
    """All of the cluster's servers."""

    server: ClusterGroup  # type: ignore[assignment]

    def __init__(self, group: ClusterGroup, **options: Any) -> None:
        self.members = group.nodes
        self._ways: dict[str | None, dict[str, Any]] = {}
        made = {"options": {**group.options, **options}}
        super().__init__(group, group.url, options=made)  # type: ignore[arg-type]

    @contextmanager
    def proxied(self) -> Iterator[Proxied]:
        nodes = self.server.nodes
        with ClusterProxy([(HOST, node.tls_port or node.port) for node in nodes]) as proxy:
            url = self.url
            for (_, port), (_, way) in proxy.ways.items():
                url = url.replace(f":{port}", f":{way}")
            self._ways[url] = {"address_remap": proxy.ways.__getitem__}
            yield Proxied(url, proxy)

    def options_for(self, url: str | None) -> dict[str, Any]:
        options = {**self.options.get("options", {}), **self._ways.get(url, {})}
        return {**self.options, "options": options}

    def kill_subscriptions(self) -> None:
        for node in self.server.nodes:
            node.says("CLIENT KILL TYPE pubsub")

    def forget_scripts(self) -> None:
        for node in self.server.nodes:
            node.says("SCRIPT FLUSH")
