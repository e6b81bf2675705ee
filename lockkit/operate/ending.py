"""Waits for the end of a child, and hears every signal meanwhile.

One wait of the system's cannot do both. The system may give a signal to another thread than the one
that waits, or just before it begins to: Python notes it, and runs its handler after the wait. So
each signal is written to a pipe as well, the one of a child's end among them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

MOST = 4096
"""Bytes that are read at once."""


def wait_for(child: subprocess.Popen[bytes]) -> bool:
    """Until it has ended; whether by a signal. It is not reaped yet, where the system can do that:
    as long as others of its group run, the lease's owner counts as alive."""
    if not is_main_thread():  # where no handler runs
        return bool(_look(child, 0))
    with _signals() as heard:
        while (killed := _look(child, os.WNOHANG)) is None:
            os.read(heard, MOST)
    return killed


def is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _look(child: subprocess.Popen[bytes], options: int) -> bool | None:
    """Whether a signal has ended it; None: it runs."""
    if not hasattr(os, "waitid"):
        status = child.poll() if options else child.wait()
        return None if status is None else status < 0
    ended = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT | options)
    return None if ended is None else ended.si_code != os.CLD_EXITED


@contextmanager
def _signals() -> Iterator[int]:
    """From which a byte can be read for each of them."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    handler = signal.signal(signal.SIGCHLD, lambda *_: None)  # those without one are not written
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    try:
        yield reading
    finally:
        signal.signal(signal.SIGCHLD, handler or signal.SIG_DFL)
        signal.set_wakeup_fd(before)
        os.close(reading)
        os.close(writing)
