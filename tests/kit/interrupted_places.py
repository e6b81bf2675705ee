"""Interrupts something in each of its places, one a run, and checks that all goes on as before."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from interrupted_stores import ENDINGS, LONG_TTL, MOST, PATIENT, SOON, TRIES
from interrupting import Interrupt, Interrupting, watched

from lockkit import BackendError, LeaseLost, LockClient
from lockkit.engine.times import alive_for
from lockkit.model.clock import now
from lockkit.stores.contract import Listed, Pushed
from lockkit.testing.conformance.base import eventually

Step = Callable[[int], Callable[[], object]]
Do = Callable[[], object] | None


class Runs(NamedTuple):
    places: int
    number: int


def interrupted_everywhere(
    step: Step,
    works: Callable[[str], object],
    below: str = "",
    do: Do = None,
    kind: type[BaseException] = Interrupt,
) -> Runs:
    """Run it again and again, each time interrupted one place later, until it ends uninterrupted.
    ``step`` gets a number that no other run has. For the others see ``Interrupting``."""
    numbers = itertools.count(1)
    with watched():
        for at in range(1, MOST):
            for _ in range(ENDINGS):
                where = soon(lambda: interrupted(at, step(next(numbers)), below, do, kind))  # noqa: B023
                works(where)
                if where:
                    break
            else:
                return Runs(at - 1, next(numbers) - 1)
    raise AssertionError(f"more than {MOST} places")


def interrupted(
    at: int, run: Callable[[], object], below: str, do: Do, kind: type[BaseException]
) -> tuple[float, str]:
    began = now()
    with Interrupting(at, below, do, kind) as interrupting:
        run()
    return now() - began, interrupting.where


def soon(scene: Callable[[], tuple[float, str]]) -> str:
    """Try again if the machine stalled. A defect takes too long, or loses the lease, each time."""
    for _ in range(TRIES):
        try:
            took, where = scene()
        except (LeaseLost, BackendError) as error:
            took, where = math.inf, str(error)
        if took < SOON:
            return where
    raise AssertionError(f"{took:.1f} s, {TRIES} times, when interrupted at {where}")


class OpenBlock:
    """The block of a generator that nobody goes on with. Its lease is given back in the middle of
    whatever its thread does, at the latest by the watchdog."""

    def __init__(self, locks: LockClient) -> None:
        self._locks = locks
        self._rows: Generator[None, None, None]

    def step(self, at: int) -> Callable[[], object]:
        def rows() -> Generator[None, None, None]:
            with self._locks.lock(f"g{at}", ttl=LONG_TTL):
                yield

        self._rows = rows()
        next(self._rows)
        return lambda: self._locks.lock(f"o{at}").acquire().release()

    def end(self) -> None:
        """Close the generator, as the garbage collector does."""
        self._rows.close()


class Works:
    """Asserts that a client works after an interrupt."""

    def __init__(self, locks: LockClient, elsewhere: ThreadPoolExecutor) -> None:
        self._locks = locks
        self._elsewhere = elsewhere

    def __call__(self, where: str) -> None:
        soon(lambda: (self._elsewhere.submit(self._pair).result(PATIENT), where))

    def hands_on(self, where: str) -> None:
        """A lock goes from this thread to the other one, by a message if the store sends any."""
        if isinstance(self._locks.store, Pushed):
            soon(lambda: (self._handed_on(), where))
        else:
            self(where)

    def _handed_on(self) -> float:
        lock = self._locks.lock("handed", ttl=LONG_TTL, timeout=LONG_TTL)
        holder = lock.acquire()
        waiting = self._elsewhere.submit(lock.acquire)
        try:
            eventually(
                lambda: waiting.done() or getattr(self._locks.inspect("handed"), "waiters", 0)
            )
            assert not waiting.done(), waiting.result()
            began = now()
        finally:
            holder.release()
            waiting.result(PATIENT).release()
        return now() - began

    def _pair(self) -> float:
        began = now()
        with self._locks.lock("after", ttl=LONG_TTL, timeout=PATIENT):
            return now() - began


def has_left(other: LockClient, name: str) -> None:
    """Nobody waits for it any more. A waiter that gave up has left the queue, before it would count
    as dead."""
    if isinstance(other.store, Listed):
        eventually(lambda: not _waiters(other, name), alive_for(LONG_TTL) * 0.8)


def nothing_is_held(other: LockClient, runs: Runs, *prefixes: str) -> None:
    """Some TTLs later. Where the store lists nothing, each of the names is taken once more."""
    if isinstance(other.store, Listed):
        eventually(lambda: not [i for i in other.holders() if i.state == "held" or i.waiters_alive])
        return
    for prefix, number in itertools.product(prefixes, range(1, runs.number + 1)):
        other.lock(f"{prefix}{number}").acquire(PATIENT).release()


def _waiters(other: LockClient, name: str) -> int:
    info = other.inspect(name)
    return info.waiters_alive if info else 0
