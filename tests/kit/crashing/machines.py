"""Server processes: a gunicorn master with one worker, or uvicorn."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

from places import KIT

from crashing.configuration import CREATE, Configuration
from crashing.points import GATE

__all__ = ["DJANGO", "FLASK", "Machine", "Server", "machines"]

DJANGO = "crashing.django_shop.servers"
FLASK = "crashing.flask_shop"
GUNICORN = (
    "gunicorn --bind 127.0.0.1:0 --preload --worker-class gthread --threads 24 --timeout 300 "
    "--graceful-timeout 1 --no-control-socket --log-level info"
)
UVICORN = "uvicorn --host 127.0.0.1 --port 0 --lifespan off --no-access-log"
READY = {"gunicorn": "Booting worker", "uvicorn": "Uvicorn running on"}
REPORT = re.compile(r"(\w+@\w+) \d+$")
SECONDS = 60.0

Server = Literal["gunicorn", "uvicorn"]


class Machine:
    """One server on its own port. A gunicorn starts another worker when its worker is killed."""

    def __init__(self, module: str, environment: dict[str, str], server: Server) -> None:
        words = (GUNICORN if server == "gunicorn" else UVICORN).split()
        application = f"{module}:{'wsgi' if server == 'gunicorn' else 'asgi'}"
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", *words, application],
            env=environment,
            cwd=environment["TMPDIR"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.reports: Counter[str] = Counter()  #: how often each stop was reported
        self._lines: deque[str] = deque(maxlen=300)
        self._news = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self._wait_for(re.escape(READY[server]))
            self.port = int(self._wait_for(r"http://127\.0\.0\.1:(\d+)")[1])
        except BaseException:
            self.close()
            raise

    def stopped(self, what: str) -> int:
        """Wait until a process has reported ``kill@view``; its process ID. Once per report."""
        return int(self._wait_for(rf"^{what} (\d+)$", take=True)[1])

    def stopped_unless(self, what: str, done: Callable[[], bool]) -> int | None:
        """As ``stopped``; None when the request is answered instead."""
        while not (answered := done()) and not self.reports[what]:
            time.sleep(0.01)
        if answered and not self.reports[what]:
            return None
        pid = self.stopped(what)
        self.reports[what] = 0
        return pid

    def workers(self) -> list[int]:
        """The processes that serve now."""
        pid = self._process.pid
        try:
            return [int(one) for one in _children(pid)]
        except OSError:
            return []

    def log(self) -> str:
        return "".join(self._lines)

    def close(self) -> None:
        """Stop the server, even if it is paused."""
        for pid in self.workers():
            _send(pid, signal.SIGCONT)
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            for pid in self.workers():
                _send(pid, signal.SIGKILL)
            self._process.kill()
            self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _wait_for(self, pattern: str, *, take: bool = False) -> re.Match[str]:
        with self._news:
            if not self._news.wait_for(lambda: self._ended or self._find(pattern), SECONDS):
                raise TimeoutError(f"no {pattern!r} in:\n{self.log()}")
            found = self._find(pattern)
            if found is None:
                raise RuntimeError(f"the server ended:\n{self.log()}")
            if take:
                self._lines.remove(found.string)
            return found

    def _find(self, pattern: str) -> re.Match[str] | None:
        matches = (re.search(pattern, line) for line in self._lines)
        return next((match for match in matches if match), None)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            report = REPORT.match(line)
            with self._news:
                self._lines.append(line)
                if report:
                    self.reports[report[1]] += 1
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()


@contextmanager
def machines(
    module: str,
    wanted: Configuration,
    directory: Path,
    *,
    server: Server = "gunicorn",
    count: int = 2,
    creates: bool = True,
) -> Iterator[list[Machine]]:
    """That many servers of one shop. The first one ``creates`` the tables."""
    environment = _environment(wanted, directory)
    if not creates:
        environment.pop(CREATE)
    with ExitStack() as stack:
        running: list[Machine] = []
        for _ in range(count):
            machine = Machine(module, environment, server)
            environment.pop(CREATE, None)
            stack.callback(machine.close)
            running.append(machine)
        yield running


def _environment(wanted: Configuration, directory: Path) -> dict[str, str]:
    gate = directory / "gate"
    if not gate.exists():
        os.mkfifo(gate)
    kept = {key: value for key, value in os.environ.items() if key != "LOCKKIT_URL"}
    return {
        **kept,
        **wanted.environment(),
        "PYTHONPATH": os.pathsep.join([str(KIT), os.environ.get("PYTHONPATH", "")]).strip(":"),
        "TMPDIR": str(directory),
        GATE: str(gate),
        CREATE: "1",
    }


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def _send(pid: int, what: signal.Signals) -> None:
    try:
        os.kill(pid, what)
    except ProcessLookupError:
        return
