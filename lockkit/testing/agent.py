"""Other processes that lock. A test starts, commands, stops and kills them.

>>> with Agent(Target("redis://127.0.0.1:6379/0")) as agent:                  # doctest: +SKIP
...     agent.acquire("a", name="stock:42")
...     agent.kill()
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from concurrent.futures import Future
from itertools import count
from typing import Any, Self

from lockkit.testing._nursery import Nursery
from lockkit.testing._reaper import Reaper
from lockkit.testing.blocking import Api
from lockkit.testing.checkers import Interval
from lockkit.testing.targets import Target

ANSWER_SECONDS = 30.0


class AgentFailed(RuntimeError):
    """The order raised in the other process, or the process is gone. ``kind`` names the error."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


class Agent:
    """Another process. ``send`` gives an order and returns at once; ``call`` waits for a reply."""

    def __init__(self, store: Target, nursery: Nursery | None = None) -> None:
        self._is_alone = nursery is None
        self._nursery = nursery or Nursery(store)
        self._process = self._nursery.fork()
        self._reaper: Reaper | None = None
        self._orders: dict[int, Future[Any]] = {}
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._reader.is_alive()

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
        """Send SIGINT, which ends the order ``interruptible`` and nothing else."""
        os.kill(self.pid, signal.SIGINT)

    def pause(self) -> None:
        """Send SIGSTOP, and wait until it has stopped. A stopped agent cannot notice the end of the
        test, so a reaper kills it then."""
        if self._reaper is None:
            self._reaper = Reaper(self.pid, signal.SIGKILL)
        os.kill(self.pid, signal.SIGSTOP)
        self._nursery.wait(self.pid)

    def resume(self) -> None:
        """Send SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)
        self._dismiss_reaper()

    def kill(self) -> None:
        """Send SIGKILL, and wait for the end."""
        if self.alive:
            os.kill(self.pid, signal.SIGKILL)
            with contextlib.suppress(OSError):  # an interrupt has closed the nursery's socket
                self._nursery.wait(self.pid)
        self._dismiss_reaper()
        self._reader.join()
        for pipe in (self._process.orders, self._process.replies):
            _close(pipe)
        if self._is_alone:
            self._nursery.close()

    def _dismiss_reaper(self) -> None:
        reaper, self._reaper = self._reaper, None
        if reaper is not None:
            reaper.dismiss()

    def _write(self, message: dict[str, object]) -> None:
        with self._lock:
            self._process.orders.write(json.dumps(message) + "\n")
            self._process.orders.flush()

    def _read(self) -> None:
        for line in self._process.replies:
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

    def __init__(self, store: Target) -> None:
        self.store = store
        self._agents: list[Agent] = []
        self._nursery: Nursery | None = None

    def take(self, number: int, api: Api) -> list[Agent]:
        """``number`` living agents, connected through this API."""
        if self._nursery is not None and self._nursery.is_closed:
            self.dismiss()
            self._agents, self._nursery = [], None
        self._agents = [agent for agent in self._agents if agent.alive]
        self._nursery = self._nursery or Nursery(self.store)
        while len(self._agents) < number:
            self._agents.append(Agent(self.store, self._nursery))
        taken = self._agents[:number]
        for order in [agent.send("connect", api=api) for agent in taken]:
            order.result(ANSWER_SECONDS)
        return taken

    def dismiss(self) -> None:
        for agent in self._agents:
            agent.kill()
        if self._nursery is not None:
            self._nursery.close()
