"""Hints between the processes that share a file: datagrams to sockets beside it.

If only its owner may open the database, only that user may send hints; otherwise everybody may. A
hint grants nothing. A socket is removed by the process that made it; if that process was killed, by
the next one that listens.
"""

from __future__ import annotations

import errno
import os
import re
import select
import socket
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from lockkit.model.errors import BackendUnavailable, UnsupportedCapability
from lockkit.runtime import process

CHANNEL: Final = r"lockkit_[0-9a-f]{16}"

LONGEST_ADDRESS: Final = 100
"""Bytes that every system takes as the address of a socket."""

LONGEST_HINT: Final = 64

MOST: Final = 256
"""Hints that are read at once."""

TICK: Final = 0.1
"""The most seconds between two looks whether the processes ahead are still alive."""

PASSING: Final = {errno.EMFILE, errno.ENFILE, errno.ENOENT, errno.ENOMEM, errno.ENOSPC}
"""Errors that may pass by themselves. After another one, no socket can be made in this place."""


class HintSocket:
    """A socket beside a database, to which hints are sent: an ``Ear``."""

    descriptor: int | None = None

    def __init__(self, database: str, channel: str) -> None:
        """Raises UnsupportedCapability; or BackendUnavailable, if the error may pass by itself."""
        path = _path(database, channel)
        try:
            self._socket = _unix_socket()
            self._removal = weakref.finalize(self, _remove, path, process.generation())
            try:
                _bind(self._socket, path, database)
            except BaseException:  # nobody else would close it
                self.close()
                raise
        except OSError as error:
            kind = BackendUnavailable if error.errno in PASSING else UnsupportedCapability
            raise kind(f"no socket can be made beside the file: {error}") from error
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)

    def messages(self, seconds: float) -> list[str]:
        """Returns after TICK at the latest. Raises nothing."""
        self._poll.poll(min(seconds, TICK) * 1e3)
        found: list[str] = []
        with suppress(OSError):
            while len(found) < MOST:
                found.append(str(self._socket.recv(LONGEST_HINT), "ascii", "replace"))
        return found

    def close(self) -> None:
        self._socket.close()
        self._removal()


def send(database: str, channel: str, token: str) -> None:
    """Send a hint. Raises nothing, and never waits: a waiter that gets no hint asks by itself."""
    if re.fullmatch(CHANNEL, channel):  # a row may say anything, and this names a file
        with (
            suppress(OSError),
            _unix_socket() as sender,
            _address(_path(database, channel)) as address,
        ):
            sender.sendto(token.encode(), address)


def _unix_socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.setblocking(False)
    return made


def _path(database: str, channel: str) -> str:
    return os.path.join(os.path.dirname(database), f".{channel}")


@contextmanager
def _address(path: str) -> Iterator[str]:
    """The path, or a shorter one to the same file: systems take about a hundred bytes."""
    if len(os.fsencode(path)) <= LONGEST_ADDRESS:
        yield path
        return
    directory, name = os.path.split(path)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


def _bind(made: socket.socket, path: str, database: str) -> None:
    """Give the socket its path. If only its owner may open the database, only that user may send to
    the socket; otherwise everybody may. The owner of the directory may have put a link in its place
    by now: the file to which that leads is left alone."""
    _remove_the_dead(os.path.dirname(path))
    with _address(path) as address:
        made.bind(address)
    status = os.stat(database)
    with suppress(OSError):  # only root may give its files away
        os.chown(path, status.st_uid, status.st_gid, follow_symlinks=False)
    with suppress(NotImplementedError):  # for a link; for any file, with a libc before 2020
        os.chmod(path, 0o666 if status.st_mode & 0o077 else 0o600, follow_symlinks=False)


def _remove_the_dead(directory: str) -> None:
    """Remove the sockets of processes that were killed: they stay, and refuse connections."""
    for name in os.listdir(directory):
        if re.fullmatch(rf"\.{CHANNEL}", name):
            path = os.path.join(directory, name)
            with suppress(OSError), _unix_socket() as sender, _address(path) as address:
                try:
                    sender.connect(address)
                except ConnectionRefusedError:
                    os.unlink(path)


def _remove(path: str, generation: int) -> None:
    """Remove the socket, but not in a forked child: it is the parent's."""
    if process.is_generation(generation):
        with suppress(OSError):
            os.unlink(path)
