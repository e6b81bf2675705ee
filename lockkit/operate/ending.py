"""Waits for the end of a child, and handles every signal meanwhile.

A single system call cannot do both. The system may deliver a signal to another thread, or just
before the wait begins. Python then notes it, and runs its handler only after the wait. So each
signal is written to a pipe as well, and so is SIGCHLD, which says that a child has ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lockkit.runtime import process

MOST = 4096
"""Bytes to read at once."""


def wait_for(child: subprocess.Popen[bytes]) -> int:
    """Wait until the child has ended; return its exit status, or -n if signal n ended it.

    Where the system has ``waitid``, the child is not reaped yet. So it still counts as the living
    owner of the lease until that is released.
    """
    if not is_main_thread():  # signal handlers do not run here
        return _look(child, 0) or 0
    with _signals() as heard:
        while (status := _look(child, os.WNOHANG)) is None:
            os.read(heard, MOST)
    return status


def is_working(group: int | None) -> bool:
    """Whether a process of this group, other than its leader, still runs; True if the system does
    not say."""
    if group is None:
        return False
    found = list(Path("/proc").glob("[0-9]*/stat"))
    return not found or any(_is_of(group, int(each.parent.name)) for each in found)


def _is_of(group: int, pid: int) -> bool:
    if pid == group:
        return False
    state, _, its_group, *_ = process.status(pid) or (b"X", b"", b"0")
    return int(its_group) == group and state not in (b"Z", b"X")


def is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _look(child: subprocess.Popen[bytes], options: int) -> int | None:
    """How the child has ended; None: it runs."""
    if child.returncode is not None or not hasattr(os, "waitid"):
        return child.poll() if options else child.wait()
    try:
        ended = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT | options)
    except ChildProcessError:  # something else in this process has reaped it
        return child.wait()
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


@contextmanager
def _signals() -> Iterator[int]:
    """Yield a file descriptor that delivers a byte for each signal."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    handler = signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler, no byte comes
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    try:
        yield reading
    finally:
        signal.signal(signal.SIGCHLD, handler or signal.SIG_DFL)
        signal.set_wakeup_fd(before)
        os.close(reading)
        os.close(writing)
