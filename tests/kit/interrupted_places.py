"""An interrupt in each place of something, one a run, and whether all goes on as before."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from interrupted_stores import LONG_TTL, MOST, SOON
from interrupting import Interrupting

from lockkit import LockClient
from lockkit.stores.contract import Pushed

Step = Callable[[int], Callable[[], object]]


def interrupted_everywhere(step: Step, works: Callable[[str], object]) -> int:
    """Run it again and again, each time interrupted one place later, until it ends before that."""
    for at in range(1, MOST):
        run = step(at)
        began = time.monotonic()
        with Interrupting(at) as interrupting:
            run()
        del run
        took = time.monotonic() - began
        assert took < SOON, f"{took:.1f} s when interrupted at {interrupting.where}"
        works(interrupting.where)
        if not interrupting.where:
            return at - 1
    raise AssertionError(f"more than {MOST} places")


class Works:
    """Whether a client does, after an interrupt."""

    def __init__(self, locks: LockClient, elsewhere: ThreadPoolExecutor) -> None:
        self._locks = locks
        self._elsewhere = elsewhere

    def __call__(self, where: str) -> None:
        began = time.monotonic()
        self._elsewhere.submit(self._pair).result(30)
        took = time.monotonic() - began
        assert took < SOON, f"{took:.1f} s for a pair, after an interrupt at {where}"

    def hands_on(self, where: str) -> None:
        """From this thread to the other one, by a message, if the store has such."""
        if not isinstance(self._locks.store, Pushed):
            return self(where)
        lock = self._locks.lock("handed", ttl=LONG_TTL, timeout=LONG_TTL)
        holder = lock.acquire()
        waiting = self._elsewhere.submit(lock.acquire)
        while not getattr(self._locks.inspect("handed"), "waiters", 0):
            assert not waiting.done(), waiting.result()
            time.sleep(0.0005)  # it needs the interpreter
        began = time.monotonic()
        holder.release()
        waiting.result(30).release()
        took = time.monotonic() - began
        assert took < SOON, f"{took:.1f} s to hand a lock on, after an interrupt at {where}"
        return None

    def _pair(self) -> None:
        with self._locks.lock("after", timeout=SOON):
            pass
