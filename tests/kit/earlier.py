"""The release before this one, from the history, to run beside this one on one store."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

from places import ROOT

from lockkit.testing.servers import MissingServer

REVISION = "14c66f0"
PACKAGES = ("lockkit", "lockkit_django", "lockkit_flask")


def unpack(target: Path) -> Path:
    """Put its packages into this folder. Raises MissingServer if the history is not there."""
    found = subprocess.run(
        ["git", "-C", str(ROOT), "archive", "--format=tar", REVISION, *PACKAGES],
        capture_output=True,
        check=False,
    )
    if found.returncode:
        raise MissingServer("the release before this one", f"git fetch origin {REVISION}")
    with tarfile.open(fileobj=BytesIO(found.stdout)) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # not in Python 3.11.2
        archive.extractall(target)
    return target


class Process:
    """A program of one release: it reads lines and answers each with a line."""

    def __init__(self, running: subprocess.Popen[str]) -> None:
        self._running = running

    def ask(self, line: str) -> str:
        self.tell(line)
        return self.hear()

    def tell(self, line: str) -> None:
        assert self._running.stdin is not None
        self._running.stdin.write(line + "\n")
        self._running.stdin.flush()

    def hear(self) -> str:
        assert self._running.stdout is not None
        return self._running.stdout.readline().strip()


@contextmanager
def process(program: Path, *arguments: str, release: Path | None = None) -> Iterator[Process]:
    """``release``: where an earlier one is; None: the one that is installed."""
    environ = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "LOCKKIT_URL"}}
    if release is not None:
        environ["PYTHONPATH"] = str(release)
    running = subprocess.Popen(
        [sys.executable, "-P", "-W", "ignore", str(program), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environ,
    )
    try:
        yield Process(running)
    finally:
        assert running.stdin is not None
        running.stdin.close()
        assert running.stdout is not None
        running.stdout.close()
        try:
            running.wait(timeout=30)
        finally:
            running.kill()
            running.wait()
