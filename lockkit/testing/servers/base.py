"""The base of all servers: one process, its port, its directory, its log."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Self

from lockkit.testing._ports import HOST, free_port
from lockkit.testing._reaper import Reaper

__all__ = ["HOST", "free_port"]

START_SECONDS = 60.0
STOP_SECONDS = 20.0


class MissingServer(RuntimeError):
    """The server is not installed. Its arguments: what is missing, and what installs it."""

    def __str__(self) -> str:
        return "{} is not installed; install it with: {}".format(*self.args)


class ServerFailed(RuntimeError):
    """The server did not start (with the end of its log), or did not do what was asked."""


class Server(ABC):
    """One server process. start() and stop() or ``with``; usable again after stop().

    The port, and what is on disk, stay the same over restart() and kill() + start(). Each
    kind of server says what its ``options`` are.
    """

    ready: ClassVar[str]
    """The text that the server logs once it accepts connections."""

    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    abort_signal: ClassVar[signal.Signals] = signal.SIGKILL
    """The signal that ends it without delay and leaves nothing behind."""

    def __init__(self, *options: str) -> None:
        self.options = options
        self.port = free_port()
        self.directory = Path(tempfile.gettempdir(), f"lockkit-{secrets.token_hex(6)}")
        self._process: subprocess.Popen[bytes] | None = None
        self._reaper: Reaper | None = None
        self._log = _Log(self.ready)
        self._prepared = False

    @property
    @abstractmethod
    def url(self) -> str:
        """Where clients connect."""

    @abstractmethod
    def prepare(self) -> None:
        """Write the files that must exist before the first start."""

    @abstractmethod
    def command(self) -> Sequence[str]:
        """The program to run, in the foreground, logging to its standard output."""

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def is_running(self) -> bool:
        """Started, and neither stopped nor killed; it may be paused."""
        return self._process is not None

    @property
    def log(self) -> str:
        """The end of what the server has logged since it was last started."""
        return self._log.text()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:  # the block has not begun, so __exit__ is not called
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> Self:
        """Start and wait until it accepts connections. Raises ServerFailed, MissingServer."""
        if self._process is not None:
            raise ServerFailed(f"{type(self).__name__} is running already")
        if not self._prepared:
            self._prepare()
        self._spawn()
        self._wait_until_ready()
        return self

    def stop(self) -> None:
        """Shut down in order and wait for the end. Does nothing when it is not running."""
        if self._process is None:
            return
        self.resume()
        for number in (self.stop_signal, self.abort_signal):
            self._process.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
                break
        else:
            self._process.kill()
        self._reap()

    def kill(self) -> None:
        """Send SIGKILL, and wait for the end."""
        if self._process is not None:
            self._process.kill()
            self._reap()

    def restart(self, *, kill: bool = False) -> None:
        """Stop (or kill) and start on the same port with the same data."""
        if kill:
            self.kill()
        else:
            self.stop()
        self.start()

    def pause(self) -> None:
        """Send SIGSTOP: connections stay open, and nothing is answered."""
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._running().send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Stop and delete the data."""
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)
        self._prepared = False

    def _wait_until_ready(self, times: int = 1) -> None:
        """Wait until the server has logged ``ready`` this many times since its start. It does so
        again after each recovery."""
        if not self._log.wait_until_ready(START_SECONDS, times):
            log = self.log
            self.kill()
            raise ServerFailed(f"{type(self).__name__} did not start:\n{log}")

    def _prepare(self) -> None:
        self.directory.mkdir(mode=0o700, exist_ok=True)
        try:
            self.prepare()
        except BaseException:  # not all files are written: the next start begins anew
            shutil.rmtree(self.directory, ignore_errors=True)
            raise
        self._prepared = True

    def _spawn(self) -> None:
        self._log = _Log(self.ready)
        self._process = subprocess.Popen(
            self.command(),
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C in a terminal is for the tests, which then stop us
        )
        self._log.follow(self._process)
        self._reaper = Reaper(self._process.pid, self.abort_signal, self.directory)

    def _reap(self) -> None:
        process, self._process = self._running(), None
        process.wait()
        self._log.join()
        if self._reaper is not None:
            self._reaper.dismiss()
            self._reaper = None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ServerFailed(f"{type(self).__name__} is not running")
        return self._process


class _Log:
    """Reads a server's output in a thread, so that it can never block on a full pipe."""

    def __init__(self, ready: str) -> None:
        self._ready = ready.encode()
        self._lines: deque[bytes] = deque(maxlen=200)
        self._changed = threading.Condition()
        self.times_ready = 0
        self._ended = False
        self._thread: threading.Thread | None = None

    def follow(self, process: subprocess.Popen[bytes]) -> None:
        self._thread = threading.Thread(target=self._read, args=(process,), daemon=True)
        self._thread.start()

    def wait_until_ready(self, seconds: float, times: int) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self.times_ready >= times, seconds)
        return self.times_ready >= times

    def text(self) -> str:
        return b"".join(list(self._lines)).decode(errors="replace")

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        """Read to the end of the output, which a child of the server may keep open for longer."""
        assert process.stdout is not None
        with process.stdout as output:
            for line in output:
                self._lines.append(line)
                if self._ready in line:
                    self._tell(ready=1)
        self._tell(ended=True)

    def _tell(self, *, ready: int = 0, ended: bool = False) -> None:
        with self._changed:
            self.times_ready += ready
            self._ended = ended
            self._changed.notify_all()


def as_user(name: str, directory: Path) -> list[str]:
    """The command prefix for servers that refuse to run as root; gives them the directory."""
    if os.geteuid() != 0:
        return []
    entry = pwd.getpwnam(name)
    os.chown(directory, entry.pw_uid, entry.pw_gid)
    return ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups"]


def run(command: Sequence[str], directory: Path) -> str:
    """Run a program to its end and return what it printed. Raises ServerFailed."""
    done = subprocess.run(
        command,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ServerFailed(f"{command[0]} failed with status {done.returncode}:\n{done.stdout}")
    return done.stdout


def find_program(name: str, *directories: str) -> str | None:
    """The path of a server's program, which may be outside of a user's PATH."""
    path = os.pathsep.join([*directories, os.environ.get("PATH", os.defpath), "/usr/sbin"])
    return shutil.which(name, path=path)
