"""The guard of ``locks run``: a process that terminates the program if the command is killed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, TypeAlias

GUARD = (
    'trap "" HUP INT QUIT TERM; read -r whom; '
    'read -r _ || { kill -s TERM -- "-$$"; kill -s TERM "$whom"; }'
)
"""Terminates the program if this command ends without telling the guard, because nobody renews the
lease then. The guard leads a process group, which others can join until it is reaped."""

Guarded: TypeAlias = tuple[IO[bytes], int | None]
"""The pipe that the guard reads, and the group of the program and of what it starts; None: it has
no group of its own."""


@contextmanager
def guarded() -> Iterator[Guarded]:
    """Start the guard. At a terminal it leads no group: keys and the shell's job control must reach
    all of these processes."""
    apart = 0 if not _has_terminal() else None
    guard = subprocess.Popen(  # noqa: S603
        ["/bin/sh", "-c", GUARD],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=apart,
    )
    assert guard.stdin is not None
    with guard:
        yield guard.stdin, guard.pid if apart is not None else None


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def say(pipe: IO[bytes], line: object) -> None:
    with suppress(BrokenPipeError):  # its reader may have been killed
        pipe.write(f"{line}\n".encode())
