"""``locks run NAME program``: hold a lock while another program runs.

Guarantee: the program starts only when the lock is held, and is terminated if the lease is lost or
this command is killed.
Limit: it may go on for a moment after that. A program of another user, such as one under sudo, goes
on until it ends by itself. The resource it writes to should compare $LOCKKIT_FENCE, which is set if
the store has fencing tokens.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import resources
from types import FrameType
from typing import IO

from lockkit.engine.holding import UNTOLD
from lockkit.leases.client import Lease, LockClient
from lockkit.model.clock import now
from lockkit.model.errors import (
    AcquireTimeout,
    ConfigurationError,
    DamagedRecord,
    LeaseLost,
    UnsupportedCapability,
)
from lockkit.model.names import repair_command
from lockkit.model.types import UNSET, Unset
from lockkit.operate.console import Console, Exit, UsageError
from lockkit.operate.ending import is_main_thread, is_working, wait_for
from lockkit.operate.guard import Guarded, guarded, say
from lockkit.operate.setting_checks import refuse_within_process
from lockkit.operate.stores import Stores
from lockkit.operate.text import escape, printable
from lockkit.runtime import process

PASSED_ON = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCONT", "SIGWINCH")
"""Without a terminal, SIGTSTP as well. At one, it reaches all of these processes by itself."""

GRACE = 10.0
"""Seconds that a program has to end after SIGTERM; then it is killed, and has as many again."""

PAUSE = 0.02
"""Seconds between checks of whether a program or its processes have ended."""

STAND_BY = resources.files(__package__).joinpath("stand_by.py").read_text()
"""The program's process waits for the fencing token, and then becomes the program.

So the pid of the program is known when the lock is requested, and the program owns the lease.
"""


def run_program(arguments: argparse.Namespace, stores: Stores, console: Console) -> int:
    """The program's exit status (128 + n for signal n); 75 if the lock was not acquired in time, 1
    if the lease was lost or the name is damaged."""
    alias = stores.select([arguments.alias])[0]
    client = _limited(stores.client(alias), arguments.max_hold)
    refuse_within_process(client)
    try:
        os.fsencode(arguments.name)
    except UnicodeEncodeError as error:
        raise UsageError(f"the locale cannot express {arguments.name!a}: use UTF-8") from error
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
        except DamagedRecord as error:
            command = escape(repair_command(arguments.name, console.program, "show"))
            console.complain(f"{printable(str(error))}: see {command}")
            return Exit.ERROR
        return _run_under(lease, program, console)


def _run_under(lease: Lease, program: _Program, console: Console) -> int:
    try:
        program.run(lease)
    finally:
        program.end()  # before anybody else gets the lock
        kept = _give_back(lease, console)
    if kept:
        return program.status()
    if not program.is_lost:  # not reported yet: this process was paused, or the loss is new
        console.complain(f"the lease on {printable(lease.name)!r} was lost meanwhile")
    return Exit.ERROR


def _limited(client: LockClient, max_hold: float | Unset | None) -> LockClient:
    """A client of the same store with another MAX_HOLD."""
    if max_hold is UNSET:
        return client
    return type(client)(client.store, client.settings._replace(max_hold=max_hold))


def _fence_of(lease: Lease) -> str:
    """The fencing token; empty if the store has none."""
    try:
        return str(lease.fencing_token)
    except UnsupportedCapability:
        return ""


def _give_back(lease: Lease, console: Console) -> bool:
    """Release the lease. Returns False if it was lost."""
    was_lost = lease._overdue
    try:
        return lease.release()
    except UNTOLD as error:
        console.complain(f"the release was not confirmed: {printable(str(error))}")
        return not was_lost


@contextmanager
def _standing_by(name: str, words: list[str], console: Console) -> Iterator[_Program]:
    """The program's process, which ends if the lock is not acquired. Signals go to its ``hear``."""
    if is_main_thread() and signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # else its exit status would be lost
    with guarded() as found:
        guard, group = found
        low, writing = os.pipe()
        reading = fcntl.fcntl(low, fcntl.F_DUPFD, 3)  # inherited; 0 would be the program's input
        os.close(low)
        with open(writing, "wb", buffering=0) as pipe:
            told = [sys.executable, "-S", "-P", "-c", STAND_BY, str(reading), *words]
            named = {**os.environ, "LOCKKIT_NAME": name}
            try:
                child = subprocess.Popen(told, close_fds=False, env=named, process_group=group)  # noqa: S603
            finally:
                os.close(reading)
            program = _Program(child, pipe, console, found)
            say(guard, child.pid)
            before = {number: signal.signal(number, program.hear) for number in _heard(group)}
            try:
                yield program
            finally:
                program.end()
                child.wait()
                for number, handler in before.items():
                    signal.signal(number, handler)


def _heard(group: int | None) -> Iterator[int]:
    """The signals to pass on. Those that this command was started to ignore are not among them: the
    program ignores them, too."""
    if is_main_thread():
        names = PASSED_ON if group is None else (*PASSED_ON, "SIGTSTP")
        numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
        kept = (signal.SIG_IGN, None)  # None: set by a program that embeds Python
        yield from (each for each in numbers if signal.getsignal(each) not in kept)


class _Program:
    """A program that stands by, runs, or has ended.

    It owns the lease. So it is not reaped until the lease is released, where the system can wait
    for it without that: if it were known to be gone, its lease would be free at once.
    """

    def __init__(
        self, child: subprocess.Popen[bytes], pipe: IO[bytes], console: Console, found: Guarded
    ) -> None:
        self.child = child
        self._pipe = pipe
        self._console = console
        self._guard, self._group = found
        self._runs = self.is_lost = False
        self._ended: int | None = None  #: how; None: not yet
        self._lease: Lease | None = None

    def run(self, lease: Lease) -> None:
        """Start the program, and wait for its end."""
        fence = _fence_of(lease)
        self._lease, self._runs = lease, True
        say(self._pipe, fence)
        self._ended = wait_for(self.child)
        if self._ended < 0 or self.is_lost:  # what a script has called outlives a signal to it
            self._terminate(lambda: is_working(self._group))

    def status(self) -> int:
        """Its exit status, once it has ended."""
        status = self._ended or 0
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
        self._terminate(lambda: self._ended is None)
        if self._ended is None:
            self._console.complain("the program goes on without the lock: it cannot be ended")

    def hear(self, number: int, _: FrameType | None) -> None:
        """During the wait for the lock, a signal ends the wait. Later it is passed to the program.
        Ctrl-C at a terminal reaches the program by itself: both are in the foreground."""
        if number == signal.SIGTSTP:
            self._stop()
        elif number == signal.SIGCONT:
            self._go_on()
        elif self._runs:
            by_itself = self._group is None and number in (signal.SIGINT, signal.SIGQUIT)
            if not by_itself and self._ended is None:
                self._kill(number)
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        elif number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            raise SystemExit(128 + number)

    def _stop(self) -> None:
        """Stop the program, and then this command: nobody renews the lease until it goes on."""
        if self._runs and self._ended is None:
            self._signal(signal.SIGSTOP)
            if self._group is not None:
                os.kill(self._group, signal.SIGCONT)  # the guard goes on
        os.kill(os.getpid(), signal.SIGSTOP)

    def _go_on(self) -> None:
        """Let the program go on, unless the lease ended while this command was stopped: ``lose``
        is called then."""
        if self._lease is not None and not self._lease.lost and self._ended is None:
            self._signal(signal.SIGCONT)

    def end(self) -> None:
        """End the program, even if it has not begun."""
        self._pipe.close()
        if self._ended is None:
            if self._runs:
                self._kill(signal.SIGTERM)
                self._kill(signal.SIGCONT)  # if it is stopped, it ends only then
            self._ended = wait_for(self.child)
        say(self._guard, "it has ended")  # before the release, which may take long

    def _kill(self, number: int) -> None:
        if self.child.returncode is None:  # else another process may have its pid now
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self.child.pid, number)

    def _signal(self, number: int) -> None:
        """Send a signal to the program, and to its group if it has one."""
        pid, group = self.child.pid, self._group
        with suppress(ProcessLookupError, PermissionError):
            if group is None or os.getpgid(pid) != group:  # it has left the group: by setsid, say
                os.kill(pid, number)
        if group is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, number)

    def _terminate(self, goes_on: Callable[[], bool]) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            until = now() + GRACE
            if goes_on():
                self._signal(number)
                self._signal(signal.SIGCONT)  # if it is stopped, it ends only then
            while goes_on() and now() < until:
                time.sleep(PAUSE)
