"""Other processes that lock. A test starts, commands, stops and kills them.

>>> with Agent(Store("redis://127.0.0.1:6379/0")) as agent:                  # doctest: +SKIP
...     agent.acquire("a", name="stock:42")
...     agent.kill()
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future
from itertools import count
from types import TracebackType
from typing import Any, Self

from lockkit.testing._reaper import Reaper
from lockkit.testing.blocking import Api
from lockkit.testing.checkers import Interval
from lockkit.testing.store import Store

__all__ = ["Agent", "AgentFailed", "Crew"]

ANSWER_SECONDS = 30.0
COMMAND = [sys.executable, "-m", "lockkit.testing.worker"]


class AgentFailed(RuntimeError):
    """The order raised in the other process, or the process is gone. ``kind`` names the error."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


class Agent:
    """Another process. ``send`` gives an order and returns at once; other methods wait for it."""

    def __init__(self, store: Store) -> None:
        self._process = subprocess.Popen(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **store.environment},
            text=True,
            start_new_session=True,  # a Ctrl-C is for the test, which then ends us
        )
        self._reaper: Reaper | None = None
        self._orders: dict[int, Future[Any]] = {}
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._write({"url": store.url, "options": store.options, "setup": store.setup})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def send(self, order: str, **arguments: object) -> Future[Any]:
        """Give an order; the future fails with AgentFailed. ``worker`` lists the orders."""
        number = next(self._numbers)
        future: Future[Any] = Future()
        with self._lock:
            self._orders[number] = future
        try:
            self._write({"id": number, "order": order, **arguments})
        except OSError as error:
            raise AgentFailed("gone", str(error)) from error
        return future

    def call(self, order: str, **arguments: object) -> Any:
        return self.send(order, **arguments).result(ANSWER_SECONDS)

    def acquire(self, handle: str, *, api: Api, name: str, timeout: float | None = 20.0) -> int:
        """Acquire, and return the fencing token."""
        reply = self.call("acquire", handle=handle, api=api, name=name, timeout=timeout)
        return int(reply["fence"])

    def cycles(self, *, api: Api, name: str, cycles: int, path: str) -> Future[list[Interval]]:
        return self.send("cycles", api=api, name=name, cycles=cycles, path=path)

    def share(self, *, api: Api, name: str, uses: list[str], cycles: int) -> Future[list[Interval]]:
        return self.send("share", api=api, name=name, uses=uses, cycles=cycles)

    def interrupt(self) -> None:
        """Send SIGINT."""
        self._process.send_signal(signal.SIGINT)

    def pause(self) -> None:
        """Send SIGSTOP, and wait until it has stopped. It cannot notice then that we are gone."""
        if self._reaper is None:
            self._reaper = Reaper(self.pid, signal.SIGKILL)
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        """Send SIGCONT."""
        self._process.send_signal(signal.SIGCONT)
        self._dismiss_reaper()

    def kill(self) -> None:
        """Send SIGKILL, and wait for the end."""
        self._process.kill()
        self._process.wait()
        self._dismiss_reaper()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                _close(pipe)

    def _dismiss_reaper(self) -> None:
        reaper, self._reaper = self._reaper, None
        if reaper is not None:
            reaper.dismiss()

    def _write(self, message: dict[str, object]) -> None:
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._settle(json.loads(line))
        with self._lock:
            left = list(self._orders.values())
            self._orders.clear()
        for future in left:
            future.set_exception(AgentFailed("gone", "the process ended before it answered"))

    def _settle(self, reply: dict[str, Any]) -> None:
        with self._lock:
            future = self._orders.pop(reply["id"])
        if "error" in reply:
            future.set_exception(AgentFailed(reply["error"], reply["message"]))
        else:
            future.set_result(reply["value"])


def _close(pipe: Any) -> None:
    with contextlib.suppress(OSError):  # what was still buffered has no reader any more
        pipe.close()


class Crew:
    """Agents of one store, used again by the next test unless they were killed."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._agents: list[Agent] = []

    def take(self, number: int, api: Api) -> list[Agent]:
        """``count`` living agents, connected through this API."""
        self._agents = [agent for agent in self._agents if agent.alive]
        while len(self._agents) < number:
            self._agents.append(Agent(self.store))
        taken = self._agents[:number]
        for order in [agent.send("connect", api=api) for agent in taken]:
            order.result(ANSWER_SECONDS)
        return taken

    def dismiss(self) -> None:
        for agent in self._agents:
            agent.kill()
