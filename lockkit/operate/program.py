"""``locks run NAME program``: hold a lock while another program runs.

Guarantee: the program starts only when the lock is held, and is terminated if the lease is lost, or
if this command is killed.
Limit: it may go on for a moment after that. The resource to which it writes should compare
$LOCKKIT_FENCE, which it has in stores with fencing tokens.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TextIO

from lockkit.leases.client import Lease, LockClient
from lockkit.model.clock import now
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

PAUSE = 0.02
"""Seconds between looks whether others than a child of ours have ended."""

STAND_BY = (
    'exec 3< "$0" && read -r LOCKKIT_FENCE <&3 || exit; '
    '( (trap "" HUP TERM; read -r _ <&3 || kill -s TERM -- "$1$$") & ) > /dev/null 2>&1; '
    'shift; export LOCKKIT_FENCE; [ "$LOCKKIT_FENCE" ] || unset LOCKKIT_FENCE; exec "$@" 3<&-'
)
"""The program's process waits for the fencing token, and then becomes the program.

So its pid is known when the lock is requested, and the process that does the work owns the lease.
It leaves somebody behind who terminates it if the pipe ends without a word: nobody renews then.
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
        return _run_under(lease, program, console)


def _run_under(lease: Lease, program: _Program, console: Console) -> int:
    try:
        status = program.run(_fence_of(lease))
    finally:
        kept = _give_back(lease, console)
    if kept:
        return status
    if not program.is_lost:  # it was not heard of: this process was paused, or it is new
        console.complain(f"the lease on {printable(lease.name)!r} was lost meanwhile")
    return status or Exit.ERROR


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


def _give_back(lease: Lease, console: Console) -> bool:
    """False if it was lost."""
    try:
        return lease.release()
    except BackendError as error:
        console.complain(f"the release was not confirmed: {printable(str(error))}")
        return True


@contextmanager
def _standing_by(name: str, words: list[str], console: Console) -> Iterator[_Program]:
    """The program's process, which ends if the lock is not acquired. Both get our signals."""
    reading, writing = os.pipe()
    apart = not _has_terminal()
    with open(writing, "w") as pipe:
        told = ["/bin/sh", "-c", STAND_BY, f"/dev/fd/{reading}", "-" if apart else "", *words]
        environment = {**os.environ, "LOCKKIT_NAME": name}
        group = 0 if apart else None
        try:
            child = subprocess.Popen(  # noqa: S603
                told, pass_fds=[reading], env=environment, process_group=group
            )
        finally:
            os.close(reading)
        program = _Program(child, pipe, console, apart=apart)
        before = {number: signal.signal(number, program.hear) for number in _heard()}
        try:
            yield program
        finally:
            program.end()
            for number, handler in before.items():
                signal.signal(number, handler)


def _has_terminal() -> bool:
    """Whether keys pressed at a terminal are for us: then the program must stay in our group."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    finally:
        os.close(terminal)


def _heard() -> Iterator[int]:
    """The signals to pass on. The program ignores those that the command was told to ignore."""
    if threading.current_thread() is threading.main_thread():
        numbers = [getattr(signal, name) for name in PASSED_ON if hasattr(signal, name)]
        yield from (each for each in numbers if signal.getsignal(each) is not signal.SIG_IGN)


class _Program:
    """``apart``: in a process group of its own, so that what it starts can be ended with it."""

    def __init__(
        self, child: subprocess.Popen[bytes], pipe: TextIO, console: Console, *, apart: bool
    ) -> None:
        self.child = child
        self._pipe = pipe
        self._console = console
        self._apart = apart
        self._runs = self.is_lost = False
        self._ended = threading.Event()

    def run(self, fence: str) -> int:
        """Start the program, wait for its end, and return its exit status."""
        self._runs = True
        self._say(fence)
        killed = self._wait()
        self._ended.set()
        self._say("it has ended")
        if self._apart and (killed or self.is_lost):
            self._end_group()
        status = self.child.wait()
        if self.is_lost:
            return Exit.ERROR
        return 128 - status if status < 0 else status

    def lose(self, lease: Lease) -> None:
        """Terminate the program. Called in a thread of the client."""
        self.is_lost = True
        try:
            lease.check()
        except LeaseLost as error:
            self._console.complain(f"{printable(str(error))}: terminating the program")
        for number in (signal.SIGTERM, signal.SIGKILL):
            if not self._ended.is_set():
                self._signal(number)
                self._ended.wait(GRACE)

    def hear(self, number: int, _: FrameType | None) -> None:
        """While the lock is waited for, a signal ends the wait. Later it is passed to the program.
        Ctrl-C at a terminal reaches the program by itself: both are in the foreground."""
        if self._runs:
            if self._apart or number not in (signal.SIGINT, signal.SIGQUIT):
                with suppress(ProcessLookupError):  # it has just ended
                    os.kill(self.child.pid, number)
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

    def _say(self, line: str) -> None:
        with suppress(BrokenPipeError):  # somebody may have killed it by now
            self._pipe.write(f"{line}\n")
            self._pipe.flush()

    def _wait(self) -> bool:
        """Until the program has ended; whether by a signal. It is not reaped yet, where the system
        can do that: as long as others of its group run, the lease's owner counts as alive."""
        if not hasattr(os, "waitid"):
            return self.child.wait() < 0
        ended = os.waitid(os.P_PID, self.child.pid, os.WEXITED | os.WNOWAIT)
        return ended is not None and ended.si_code != os.CLD_EXITED

    def _signal(self, number: int) -> None:
        """To the program, and to what it has started."""
        with suppress(ProcessLookupError):
            (os.killpg if self._apart else os.kill)(self.child.pid, number)

    def _end_group(self) -> None:
        """A script that a signal ends leaves behind what it has called, which goes on working."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            self._signal(number)
            until = now() + GRACE
            while self._works():
                if now() > until:
                    break
                time.sleep(PAUSE)

    def _works(self) -> bool:
        """Whether something of its group does; False as well where the system does not say."""
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                state, _, group, *_ = stat.read_bytes().rpartition(b")")[2].split()
                if int(group) == self.child.pid and state not in (b"Z", b"X"):
                    return True
        return False
