"""``locks run NAME program``: hold a lock while another program runs.

Guarantee: the program starts only with the lock held, and is terminated when the lease is lost.
Limit: it may go on for a moment after the loss; what it writes to should compare $LOCKKIT_FENCE.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Self

from lockkit.leases.client import Lease, LockClient
from lockkit.model.errors import AcquireTimeout, BackendError, ConfigurationError, LeaseLost
from lockkit.model.settings import DEFAULT_ALIAS
from lockkit.model.types import UNSET
from lockkit.operate.commands.exits import Exit, UsageError
from lockkit.operate.commands.stores import Stores
from lockkit.operate.commands.terminal import Console, escape, printable
from lockkit.runtime import process

__all__ = ["run_command"]

FORWARDED = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCONT", "SIGWINCH")
GRACE = 10.0
"""Seconds a program gets to end after its lease was lost, before it is killed."""

LOOK = 1.0
"""Seconds between two looks at the lease; sooner if it ends sooner."""

NOT_FOUND = 127
NOT_EXECUTABLE = 126


def run_command(arguments: argparse.Namespace, stores: Stores, console: Console) -> int:
    """The program's exit status (128 + n for signal n), 75, or 1 when the lease was lost."""
    alias = stores.select([arguments.alias or DEFAULT_ALIAS])[0]
    client = _limited(stores.client(alias), arguments.max_hold)
    try:
        lock = client.lock(
            arguments.name,
            ttl=UNSET if arguments.ttl is None else arguments.ttl,
            timeout=UNSET if arguments.timeout is None else arguments.timeout,
            label=f"run {os.path.basename(arguments.program[0])}",
        )
    except ConfigurationError as error:
        raise UsageError(str(error)) from error
    if (refusal := _refusal(arguments.program[0])) is not None:
        console.complain(f"{escape(arguments.program[0])} {refusal[0]}")
        return refusal[1]
    with _Signals() as signals, _Held(arguments.program) as held:
        try:
            with process.acting_for(held.child.pid):
                lease = lock.acquire()
        except AcquireTimeout as error:
            console.complain(printable(str(error)))
            return Exit.NOT_ACQUIRED
        try:
            return _Child(held, lease, signals, console).run()
        finally:
            _give_back(lease, console)


def _refusal(program: str) -> tuple[str, int] | None:
    """Why it cannot be started, and the status for that."""
    if shutil.which(program) is not None:
        return None
    if shutil.which(program, os.F_OK) is not None or os.path.isdir(program):
        return "cannot be executed", NOT_EXECUTABLE
    return "was not found", NOT_FOUND


class _Held:
    """The program's process, which waits until the lock is there and then becomes the program.

    So its pid is known when the lock is asked for, and the lease is owned by the process that does
    the work: it is alive as long as that is, also when the command itself has been killed.
    """

    def __init__(self, program: list[str]) -> None:
        reading, self._writing = os.pipe()
        try:
            command = [sys.executable, "-ISc", _WAIT, str(reading), *program]
            self.child = subprocess.Popen(command, pass_fds=[reading])  # noqa: S603  (the point)
        except BaseException:
            os.close(self._writing)
            raise
        finally:
            os.close(reading)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """If it has not begun, it ends."""
        self.begin({})
        self.child.wait()

    def begin(self, environment: Mapping[str, str]) -> None:
        writing, self._writing = self._writing, -1
        if writing >= 0:
            with open(writing, "wb") as pipe, suppress(BrokenPipeError):
                pipe.write(json.dumps(environment).encode() if environment else b"")


_WAIT = """\
import json, os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
with open(int(sys.argv[1]), "rb") as pipe:
    environment = pipe.read()
if not environment:
    os._exit(1)
for name in ("SIGPIPE", "SIGXFSZ"):
    signal.signal(getattr(signal, name), signal.SIG_DFL)
try:
    os.execvpe(sys.argv[2], sys.argv[2:], json.loads(environment))
except FileNotFoundError:
    os._exit(127)
except OSError:
    os._exit(126)
"""


def _limited(client: LockClient, max_hold: float | None) -> LockClient:
    """The same store, with another longest hold. NaN: as the alias says."""
    if max_hold is not None and math.isnan(max_hold):
        return client
    return type(client)(client.backend, client.settings._replace(max_hold=max_hold))


def _give_back(lease: Lease, console: Console) -> None:
    try:
        lease.release()
    except BackendError as error:
        console.complain(f"the release was not confirmed: {printable(str(error))}")


class _Signals:
    """Signals end a waiting acquire, and are passed on once there is a child."""

    def __init__(self) -> None:
        self.child: subprocess.Popen[bytes] | None = None
        self._before: dict[int, signal._HANDLER] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for name in FORWARDED:
                number = getattr(signal, name, None)
                if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.child is not None:
            self._pass_on(self.child, number)
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        elif number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            raise SystemExit(128 + number)

    def _pass_on(self, child: subprocess.Popen[bytes], number: int) -> None:
        """Ctrl-C at a terminal reaches the child by itself: both are in the foreground."""
        from_terminal = number in (signal.SIGINT, signal.SIGQUIT) and _has_terminal()
        if not from_terminal:
            child.send_signal(number)


class _Child:
    """The program, while it runs and the lease is watched."""

    def __init__(self, held: _Held, lease: Lease, signals: _Signals, console: Console) -> None:
        self._held = held
        self._lease = lease
        self._signals = signals
        self._console = console
        self._ended = threading.Event()

    def run(self) -> int:
        with self._started() as child:
            return self._wait(child)

    @contextmanager
    def _started(self) -> Iterator[subprocess.Popen[bytes]]:
        environment = {
            **os.environ,
            "LOCKKIT_NAME": self._lease.name,
            "LOCKKIT_FENCE": str(self._lease.fencing_token),
        }
        child = self._signals.child = self._held.child
        self._held.begin(environment)
        threading.Thread(target=self._await_end, args=(child,), daemon=True).start()
        try:
            yield child
        finally:
            self._end(child)

    def _await_end(self, child: subprocess.Popen[bytes]) -> None:
        child.wait()
        self._ended.set()

    def _wait(self, child: subprocess.Popen[bytes]) -> int:
        while not self._ended.wait(min(LOOK, self._lease.remaining() + 0.001)):
            try:
                self._lease.check()
            except LeaseLost as error:
                self._console.complain(f"{printable(str(error))}: terminating the program")
                return Exit.ERROR
        status = child.returncode
        return 128 - status if status < 0 else status

    def _end(self, child: subprocess.Popen[bytes]) -> None:
        """Does nothing to a program that has ended by itself."""
        if self._ended.is_set():
            return
        child.terminate()
        if not self._ended.wait(GRACE):
            child.kill()
            self._ended.wait()


def _has_terminal() -> bool:
    try:
        return os.isatty(0)
    except OSError:
        return False
