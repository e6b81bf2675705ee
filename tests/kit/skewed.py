"""Servers whose wall clock can be set while they run. That of this machine is left alone."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

from lockkit.testing.servers import (
    MariaDBServer,
    MissingServer,
    PostgresServer,
    RedisServer,
    Server,
    ZooKeeperServer,
)

SOURCE = Path(__file__).with_suffix(".c")
SECONDS = struct.Struct("l")


class Skewed(Server):
    """Before the server's class among the bases."""

    def set_ahead(self, seconds: int) -> None:
        """Its clock jumps to so many seconds ahead of ours."""
        with self._skew.open("r+b") as file:  # in place: the server has mapped it
            file.write(SECONDS.pack(seconds))

    def prepare(self) -> None:
        super().prepare()
        self._skew.write_bytes(SECONDS.pack(0))
        compiler = shutil.which("cc")
        if compiler is None:
            raise MissingServer("a C compiler", "apt-get install --yes gcc libc6-dev")
        compiled = [compiler, "-shared", "-fPIC", "-o", str(self._library), str(SOURCE)]
        subprocess.run(compiled, check=True)

    def preloaded(self) -> dict[str, str]:
        """The environment of a program that has the same clock."""
        return {"LD_PRELOAD": str(self._library), "SKEW": str(self._skew)}

    def command(self) -> Sequence[str]:
        preload = [f"{key}={value}" for key, value in self.preloaded().items()]
        return ["/usr/bin/env", *preload, *super().command()]

    @property
    def _skew(self) -> Path:
        return self.directory / "skew"

    @property
    def _library(self) -> Path:
        return self.directory / "skewed.so"


class SkewedRedis(Skewed, RedisServer):
    pass


class SkewedPostgres(Skewed, PostgresServer):
    pass


class SkewedMariaDB(Skewed, MariaDBServer):
    pass


class SkewedZooKeeper(Skewed, ZooKeeperServer):
    pass
