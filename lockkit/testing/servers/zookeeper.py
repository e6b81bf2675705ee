"""ZooKeeper."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Self

from lockkit.testing.servers.base import (
    HOST,
    START_SECONDS,
    MissingServer,
    Server,
    ServerFailed,
    find_program,
)

JARS = ("/usr/share/java/zookeeper.jar", "/usr/share/java/slf4j-simple.jar")
MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
# A small JVM that starts fast: each runs for a minute, and many of them side by side.
JAVA = (
    "-Xmx128m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Dzookeeper.admin.enableServer=false",
    "-Dzookeeper.forceSync=no",
    "-Dzookeeper.fastleader.maxNotificationInterval=1000",
    "-Dzookeeper.4lw.commands.whitelist=*",
    "-Dznode.container.checkIntervalMs=1000",
)
TICK = 0.1
LONGEST_SESSION = 600.0
ASK_SECONDS = 0.5  # a server that has just begun accepts the question, and does not answer it


class ZooKeeperServer(Server):
    """Debian's ZooKeeper. ``options`` are lines of its configuration ("maxClientCnxns=10").

    ``tick``: its tickTime in seconds. The shortest session that it grants is two of them long.
    """

    ready: ClassVar[str] = "binding to port"

    def __init__(self, *options: str, tick: float = TICK) -> None:
        super().__init__(*options)
        self.tick = tick

    @property
    def url(self) -> str:
        return f"zookeeper://{HOST}:{self.port}/lockkit"

    def prepare(self) -> None:
        lines = [
            f"tickTime={round(self.tick * 1000)}",
            f"dataDir={self.directory / 'data'}",
            f"clientPort={self.port}",
            f"clientPortAddress={HOST}",
            f"maxSessionTimeout={round(LONGEST_SESSION * 1000)}",
            "maxClientCnxns=0",
            "preAllocSize=1024",
            *self.options,
        ]
        (self.directory / "data").mkdir()
        (self.directory / "zoo.cfg").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def command(self) -> Sequence[str]:
        java = find_program("java")
        if java is None or not all(Path(jar).exists() for jar in JARS):
            raise MissingServer("ZooKeeper", "apt-get install --yes zookeeper")
        return [java, *JAVA, "-cp", ":".join(JARS), MAIN, str(self.directory / "zoo.cfg")]

    def start(self) -> Self:
        super().start()
        self.wait_until_serving()
        return self

    def wait_until_serving(self) -> None:
        """Wait until it serves clients, for which one of an ensemble must find the others first."""
        deadline = time.monotonic() + START_SECONDS
        while "Mode: " not in self.ask("srvr"):
            if time.monotonic() > deadline:
                raise ServerFailed(f"ZooKeeper does not serve clients:\n{self.log}")
            time.sleep(0.02)

    def ask(self, word: str) -> str:
        """The answer to a four-letter word ("mntr"); empty if the server does not answer."""
        with (
            suppress(OSError),
            socket.create_connection((HOST, self.port), timeout=ASK_SECONDS) as asked,
        ):
            asked.sendall(word.encode())
            return b"".join(iter(lambda: asked.recv(65536), b"")).decode(errors="replace")
        return ""
