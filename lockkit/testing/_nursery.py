"""A process that forks the agents of a store. It has imported the store, and has no client.

Agents are forked, because starting Python and importing a driver takes longer than most orders.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TextIO

from lockkit.testing import worker
from lockkit.testing.targets import Target

COMMAND = [sys.executable, "-m", "lockkit.testing._nursery"]
PID_BYTES = 4
SETTINGS_BYTES = 1 << 16


class Forked(NamedTuple):
    """A child of the nursery."""

    pid: int
    orders: TextIO
    replies: TextIO


class Nursery:
    """Starts the process that forks, and asks it for workers."""

    def __init__(self, store: Target) -> None:
        self._asking = threading.Lock()
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                COMMAND,
                stdin=theirs.fileno(),
                env={**os.environ, **store.environment},
                start_new_session=True,  # a Ctrl-C is for the test
            )
        settings = {"url": store.url, "options": store.options, "setup": store.setup}
        self._socket.sendall(json.dumps(settings).encode())
        self._answer()

    def fork(self) -> Forked:
        orders, our_orders = os.pipe()
        our_replies, replies = os.pipe()
        ours = os.fdopen(our_orders, "w"), os.fdopen(our_replies)
        try:
            return Forked(self._ask(0, orders, replies), *ours)
        finally:
            for pipe in (orders, replies):
                os.close(pipe)

    def wait(self, pid: int) -> None:
        """Wait until this child has ended or stopped."""
        self._ask(pid)

    @property
    def is_closed(self) -> bool:
        return self._socket.fileno() < 0

    def close(self) -> None:
        """Wait until the children have ended, and then the process that forked them."""
        with contextlib.suppress(OSError):  # it is closed, or a forked child has it as well
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._process.wait()

    def _ask(self, number: int, *pipes: int) -> int:
        with self._asking:
            try:
                socket.send_fds(self._socket, [number.to_bytes(PID_BYTES, "big")], pipes)
                return self._answer()
            except BaseException:  # interrupted: the next request would get this answer
                self._socket.close()
                raise

    def _answer(self) -> int:
        answer = self._socket.recv(PID_BYTES)
        if not answer:
            raise ChildProcessError("the process from which agents are forked has ended")
        return int.from_bytes(answer, "big")


def main() -> None:
    nursery = socket.socket(fileno=os.dup(sys.stdin.fileno()))
    settings = json.loads(nursery.recv(SETTINGS_BYTES))
    worker.prepare(settings)
    nursery.send(bytes(PID_BYTES))
    while True:
        asked, pipes, *_ = socket.recv_fds(nursery, PID_BYTES, 2)
        if not asked:
            break
        pid = int.from_bytes(asked, "big")
        if pid:
            os.waitpid(pid, os.WUNTRACED)
        elif not (pid := os.fork()):
            nursery.close()
            _become_a_worker(settings, pipes)
        for pipe in pipes:
            os.close(pipe)
        nursery.send(pid.to_bytes(PID_BYTES, "big"))
    _wait_for_all()


def _become_a_worker(settings: Mapping[str, Any], pipes: Sequence[int]) -> NoReturn:
    os.setsid()
    for standard, pipe in enumerate(pipes):  # input and output
        os.dup2(pipe, standard)
        os.close(pipe)
    worker.serve(settings)


def _wait_for_all() -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


if __name__ == "__main__":
    main()
