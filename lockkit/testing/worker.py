"""A process under a test's control. See ``agent``.

Reads orders from standard input, one JSON object per line: {"id", "order", …}; writes one per line
to standard output: {"id", "value"} or {"id", "error"}. Each order runs in a thread of its own,
except ``interruptible``, which a signal must be able to reach.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import signal
import sys
import threading
import warnings
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NoReturn

from lockkit import aio
from lockkit.engine import holding
from lockkit.model.clock import now
from lockkit.model.settings import settings_from_url
from lockkit.stores.registry import load_store
from lockkit.testing.blocking import AnyClient, AnyLease, Api, connect, used_as
from lockkit.testing.checkers import Belief, Counter, FencedRegister, Interval, fence_of

CHILD_SECONDS = 20
"""A forked child that hangs is ended after this time; its parent sees that it wrote nothing."""

STALL_SECONDS = 20.0
"""A request that broke off is repeated, even if the machine stalled for up to this time."""


def prepare(settings: Mapping[str, Any]) -> None:
    """Import what a store with these {"url", "options", "setup"} needs, and connect to nothing."""
    if settings["setup"]:
        module, _, function = settings["setup"].partition(":")
        getattr(import_module(module), function)()
    load_store(settings_from_url(settings["url"], **settings["options"]))


def serve(settings: Mapping[str, Any]) -> NoReturn:
    """Carry out orders until standard input ends."""
    holding.RETRY_WITHIN = STALL_SECONDS
    worker = Worker(settings["url"], settings["options"])
    threading.Thread(target=worker.read, daemon=True).start()
    worker.work()


class Worker:
    """Leases and clients by handle, and the orders that use them."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self.url = url
        self.options = options
        self._clients: dict[Api, AnyClient] = {}
        self._leases: dict[str, AnyLease] = {}
        self._main: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._writing = threading.Lock()
        self._connecting = threading.Lock()

    def read(self) -> None:
        """Take orders until standard input ends."""
        for line in sys.stdin:
            message = json.loads(line)
            if message["order"] == "interruptible":
                self._main.put(message)
            else:
                threading.Thread(target=self.obey, args=(message,), daemon=True).start()
        os._exit(0)  # the test is over: leases expire, as after any death

    def work(self) -> NoReturn:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        while True:
            self.obey(self._main.get())

    def obey(self, message: dict[str, Any]) -> None:
        number = message.pop("id")
        order = getattr(self, "do_" + message.pop("order"))
        try:
            reply = {"id": number, "value": order(**message)}
        except BaseException as error:  # noqa: BLE001 - KeyboardInterrupt is a result here
            reply = {"id": number, "error": type(error).__name__, "message": str(error)}
        with self._writing:
            sys.stdout.write(json.dumps(reply) + "\n")
            sys.stdout.flush()

    def client(self, api: Api) -> AnyClient:
        with self._connecting:
            if api not in self._clients:
                self._clients[api] = connect(api, self.url, **self.options)
            return self._clients[api]

    def do_acquire(
        self,
        handle: str,
        api: Api,
        name: str,
        timeout: float | None = 20.0,
        ttl: float = 30.0,
        *,
        owner: str = "",
    ) -> dict[str, float]:
        lock = self.client(api).lock(name, ttl=ttl, reentrant=bool(owner), owner=owner)
        lease = lock.acquire(timeout)
        self._leases[handle] = lease
        return {"fence": fence_of(lease), "at": now(), "until": now() + lease.remaining()}

    def do_visit(self, api: Api, name: str) -> dict[str, float]:
        """Acquire and release at once, in one order."""
        with self.client(api).lock(name, ttl=30.0).acquire(30.0) as lease:
            return {"fence": fence_of(lease), "at": now()}

    def do_release(self, handle: str) -> bool:
        return self._leases.pop(handle).release()

    def do_lost(self, handle: str) -> bool:
        return self._leases[handle].lost

    def do_check(self, handle: str) -> None:
        self._leases[handle].check()

    def do_write(self, handle: str, path: str) -> bool:
        """Write to a fenced register with the fence of a lease, even if it is lost."""
        return FencedRegister(path).write(self._leases[handle].fencing_token, handle)

    def do_cycles(
        self, api: Api, name: str, cycles: int, path: str, timeout: float = 60.0
    ) -> list[Interval]:
        """Acquire, increment an unfenced counter and release, repeatedly. Returns the history."""
        counter = Counter(path)
        lock = self.client(api).lock(name, timeout=timeout)
        intervals = []
        for _ in range(cycles):
            lease = lock.acquire()
            belief = Belief(name, str(os.getpid()), lease)
            counter.increment()
            intervals.append(belief.end())
            lease.release()
        return intervals

    def do_share(self, api: Api, name: str, uses: list[str], cycles: int) -> list[Interval]:
        """Acquire and release repeatedly, as each of ``uses`` in turn. Returns the history."""
        intervals = []
        for number in range(cycles):
            use = uses[number % len(uses)]
            with used_as(self.client(api), name, use).acquire(60.0) as lease:
                belief = Belief(name, str(os.getpid()), lease, shared=lease.shared)
                os.sched_yield()
                intervals.append(belief.end())
        return intervals

    def do_fork(self, handle: str, api: Api) -> dict[str, object]:
        """What a forked child sees of the lease that it inherits."""
        reader, writer = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads are the point here
            child = os.fork()
        if not child:
            self._in_child(writer, handle, api)
        os.close(writer)
        with os.fdopen(reader) as report:
            seen: dict[str, object] = json.loads(report.read() or "{}")
        os.waitpid(child, 0)
        return seen

    def _in_child(self, writer: int, handle: str, api: Api) -> None:
        signal.alarm(CHILD_SECONDS)
        try:
            seen = self._look_at_inheritance(handle, api)
        except BaseException as error:  # noqa: BLE001 - the parent must hear of it
            seen = {"error": repr(error)}
        os.write(writer, json.dumps(seen).encode())
        os._exit(0)

    def _look_at_inheritance(self, handle: str, api: Api) -> dict[str, object]:
        lease = self._leases[handle]
        seen: dict[str, object] = {"lost": lease.lost, "remaining": lease.remaining()}
        if api == "sync":
            client = self._clients[api]
            seen["released"] = lease.release()
        else:  # an event loop does not survive a fork: the child makes another
            client = connect(api, self.url, **self.options)
        seen["taken"] = client.lock(lease.name).try_acquire() is not None
        with client.lock(lease.name + "-child").acquire(5) as own:
            seen["own"] = not own.lost
        return seen

    def do_interruptible(self, api: Api, name: str) -> None:
        """Acquire in the main thread, where SIGINT raises KeyboardInterrupt."""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            if api == "sync":
                self.client(api).lock(name).acquire(None).release()
            else:
                asyncio.run(self._acquire(name))
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    async def _acquire(self, name: str) -> None:
        client = aio.connect(self.url, **self.options)
        try:
            async with client.lock(name, timeout=None):
                pass
        finally:
            await client.close()

    def do_connect(self, api: Api) -> None:
        """Connect now, so that later steps need not."""
        self.client(api).lock(f"worker:{os.getpid()}").acquire().release()
