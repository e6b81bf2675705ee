"""A Redis server whose wall clock can be set while it runs. That of this machine is left alone."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

from lockkit.testing.servers import MissingServer, RedisServer

SOURCE = Path(__file__).with_suffix(".c")
SECONDS = struct.Struct("l")


class SkewedRedis(RedisServer):
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

    def command(self) -> Sequence[str]:
        preload = [f"LD_PRELOAD={self._library}", f"SKEW={self._skew}"]
        return ["/usr/bin/env", *preload, *super().command()]

    @property
    def _skew(self) -> Path:
        return self.directory / "skew"

    @property
    def _library(self) -> Path:
        return self.directory / "skewed.so"
