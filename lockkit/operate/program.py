"""``locks run NAME program``: hold a lock while another program runs.

Guarantee: the program starts only when the lock is held, and is terminated if the lease is lost.
Limit: it may go on for a moment after the loss. The resource to which it writes should compare
$LOCKKIT_FENCE, which it has in stores with fencing tokens.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TextIO

from lockkit.leases.client import Lease, LockClient
from lockkit.model.errors import (
    AcquireTimeout,
    BackendError,
    ConfigurationError,
    LeaseLost,
    UnsupportedCapability,
)
from lockkit.model.settings import DEFAULT_ALIAS
from lockkit.model.types import UNSET, Unset
from lockkit.operate.console import Console, Exit, UsageError
from lockkit.operate.stores import Stores
from lockkit.operate.text import printable
from lockkit.runtime import process

PASSED_ON = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCONT", "SIGWINCH")
GRACE = 10.0
"""Seconds in which a program may end after its lease was lost; then it is killed."""

STAND_BY = (
    'read -r LOCKKIT_FENCE < "$0" || exit; export LOCKKIT_FENCE; '
    '[ "$LOCKKIT_FENCE" ] || unset LOCKKIT_FENCE; exec "$@"'
)
"""The program's process waits for the fencing token, and then becomes the program.

So its pid is known when the lock is requested, and the process that does the work owns the lease.
The owner counts as alive while the program runs, even if the command itself was killed.
"""


def run_program(arguments: argparse.Namespace, stores: Stores, console: Console) -> int:
    """The program's exit status (128 + n for signal n), 75, or 1 if the lease was lost."""
    alias = stores.select([arguments.alias or DEFAULT_ALIAS])[0]
    client = _limited(stores.client(alias), arguments.max_hold)
    with _standing_by(arguments.name, arguments.program, console) as program:
        try:
            lock = client.lock(
                arguments.name,
                ttl=arguments.ttl,
                timeout=arguments.timeout,
                label=f"run {os.path.basename(arguments.program[0])}",
                on_lost=program.lose,
            )
        except ConfigurationError as error:
            raise UsageError(str(error)) from error
        try:
            with process.acting_for(program.child.pid):
                lease = lock.acquire()
        except AcquireTimeout as error:
            console.complain(printable(str(error)))
            return Exit.NOT_ACQUIRED
        try:
            return program.run(_fence_of(lease))
        finally:
            _give_back(lease, console)


def _limited(client: LockClient, max_hold: float | Unset | None) -> LockClient:
    """A client of the same store with another MAX_HOLD."""
    if max_hold is UNSET:
        return client
    return type(client)(client.store, client.settings._replace(max_hold=max_hold))


def _fence_of(lease: Lease) -> str:
    """Empty, if the store has no fencing tokens."""
    try:
        return str(lease.fencing_token)
    except UnsupportedCapability:
        return ""


def _give_back(lease: Lease, console: Console) -> None:
    try:
        lease.release()
    except BackendError as error:
        console.complain(f"the release was not confirmed: {printable(str(error))}")


@contextmanager
def _standing_by(name: str, words: list[str], console: Console) -> Iterator[_Program]:
    """The program's process, which ends if the lock is not acquired. Both get our signals."""
    reading, writing = os.pipe()
    with open(writing, "w") as pipe:
        command = ["/bin/sh", "-c", STAND_BY, f"/dev/fd/{reading}", *words]
        environment = {**os.environ, "LOCKKIT_NAME": name}
        try:
            child = subprocess.Popen(command, pass_fds=[reading], env=environment)  # noqa: S603
        finally:
            os.close(reading)
        program = _Program(child, pipe, console)
        before = {number: signal.signal(number, program.hear) for number in _heard()}
        try:
            yield program
        finally:
            program.end()
            for number, handler in before.items():
                signal.signal(number, handler)


def _heard() -> Iterator[int]:
    """The signals to pass on. The program ignores those that the command was told to ignore."""
    if threading.current_thread() is threading.main_thread():
        numbers = [getattr(signal, name) for name in PASSED_ON if hasattr(signal, name)]
        yield from (each for each in numbers if signal.getsignal(each) is not signal.SIG_IGN)


class _Program:
    def __init__(self, child: subprocess.Popen[bytes], pipe: TextIO, console: Console) -> None:
        self.child = child
        self._pipe = pipe
        self._console = console
        self._runs = self._is_lost = False

    def run(self, fence: str) -> int:
        """Start the program, wait for its end, and return its exit status."""
        self._runs = True
        with suppress(BrokenPipeError), self._pipe:  # somebody may have killed it by now
            self._pipe.write(f"{fence}\n")
        status = self.child.wait()
        if self._is_lost:
            return Exit.ERROR
        return 128 - status if status < 0 else status

    def lose(self, lease: Lease) -> None:
        """Terminate the program. Called in a thread of the client."""
        self._is_lost = True
        try:
            lease.check()
        except LeaseLost as error:
            self._console.complain(f"{printable(str(error))}: terminating the program")
        self.child.terminate()
        try:
            self.child.wait(GRACE)
        except subprocess.TimeoutExpired:
            self.child.kill()

    def hear(self, number: int, _: FrameType | None) -> None:
        """While the lock is waited for, a signal ends the wait. Later it is passed to the program.
        Ctrl-C at a terminal reaches the program by itself: both are in the foreground."""
        if self._runs:
            if number not in (signal.SIGINT, signal.SIGQUIT) or not os.isatty(0):
                self.child.send_signal(number)
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        elif number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            raise SystemExit(128 + number)

    def end(self) -> None:
        """End the program, also if it has not begun."""
        self._pipe.close()
        if self._runs:
            self.child.terminate()  # does nothing to one that has ended
        self.child.wait()
