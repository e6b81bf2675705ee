"""Situations in which a wrong lock shows itself. The checkers judge each.

``violations(world)`` plays all of them and returns the faults as sentences. For a lock that keeps
its promises it returns none. The scenarios know only the ``Subject`` of a lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from broken_locks import Subject, SubjectClaim

from lockkit.model.clock import now
from lockkit.testing.checkers import Belief, Counter, FencedRegister, History

__all__ = ["TTL", "World", "violations"]

TTL = 0.3
"""Seconds: of the leases in all scenarios but the crowded one."""

LONG = 30.0
SLOWNESS = 0.1
WORKERS = 4
CYCLES = 15
GAP = 0.002


class World(Protocol):
    """Makes clients of the lock under test, and troubles them. Each scenario uses a new name.

    ``directory`` is empty, and for the scenarios' files.
    """

    directory: Path

    def subject(self, name: str, ttl: float) -> Subject:
        """The lock of one more client. It is renewed only on demand."""

    def slow_replies(self, seconds: float) -> AbstractContextManager[None]:
        """Subjects made inside get the store's replies later, by this many seconds."""

    def step_wall_clock(self, seconds: float) -> None:
        """Set the clients' wall clocks."""


def violations(world: World) -> list[str]:
    """The faults, one sentence each; none if the lock is right."""
    return [
        f"{scenario.__name__}: {sentence}"
        for scenario in (crowd, late_release, slow_reply, clock_set_back, late_renewal, succession)
        for sentence in scenario(world)
    ]


def crowd(world: World) -> Iterator[str]:
    """Several clients want it at once."""
    counter, history = Counter(world.directory / "counter", gap=GAP), History()
    start = threading.Barrier(WORKERS)

    def work(worker: int) -> None:
        subject = world.subject("crowd", LONG)
        start.wait()
        for _ in range(CYCLES):
            claim = granted(subject, LONG)
            with history.believing("crowd", str(worker), claim):
                counter.increment()
            claim.release()

    with ThreadPoolExecutor(WORKERS) as threads:
        list(threads.map(work, range(WORKERS)))
    yield from judged(history)
    if counter.value != WORKERS * CYCLES:
        yield f"{WORKERS * CYCLES - counter.value} updates of the counter were lost"


def late_release(world: World) -> Iterator[str]:
    """A holder comes back after its TTL and releases, while the next one holds."""
    first, second, third = (world.subject("late release", TTL) for _ in range(3))
    history = History()
    late = granted(first, LONG)
    with history.believing("late release", "first", late):
        next_one = granted(second, LONG)
    with history.believing("late release", "second", next_one) as belief:
        late.release()
        with taken(third, belief) as intruder:
            if intruder is not None:
                history += [Belief("late release", "third", intruder).end()]
                belief.look()
    next_one.release()
    yield from judged(history)


def slow_reply(world: World) -> Iterator[str]:
    """The grant takes a while to arrive, and its holder uses all of its time."""
    with world.slow_replies(SLOWNESS):
        slow = granted(world.subject("slow reply", TTL), LONG)
    history = History()
    belief = Belief("slow reply", "first", slow)
    yield from followed(world, "slow reply", history, belief)


def clock_set_back(world: World) -> Iterator[str]:
    """The holder's wall clock is set back by an hour."""
    claim = granted(world.subject("clock", TTL), LONG)
    belief = Belief("clock", "first", claim)
    world.step_wall_clock(-3600)
    try:
        yield from followed(world, "clock", History(), belief)
    finally:
        world.step_wall_clock(3600)


def late_renewal(world: World) -> Iterator[str]:
    """The holder's watchdog was paused past the TTL, and goes on where it was."""
    history = History()
    claim = granted(world.subject("late renewal", TTL), LONG)
    belief = Belief("late renewal", "first", claim)
    next_one = granted(world.subject("late renewal", TTL), LONG)
    with history.believing("late renewal", "second", next_one):
        claim.renew()
        belief.look()
    history += [belief.end()]
    next_one.release()
    yield from judged(history)


def succession(world: World) -> Iterator[str]:
    """One after the other writes to a resource that compares fences; some leases expire."""
    register, history = FencedRegister(world.directory / "register"), History()
    for turn in range(6):
        claim = granted(world.subject("succession", TTL / 3), LONG)
        with history.believing("succession", str(turn), claim):
            if not register.write(claim.fencing_token, str(turn)):
                yield f"the fresh write of holder {turn} was refused: its fence is too small"
        if turn % 3:
            claim.release()
    yield from judged(history)


def followed(world: World, name: str, history: History, belief: Belief) -> Iterator[str]:
    """Somebody else waits for it; at that moment the first one looks whether it still holds."""
    claim = granted(world.subject(name, TTL), LONG)
    with history.believing(name, "second", claim):
        history += [belief.end()]
    claim.release()
    yield from judged(history)


def judged(history: History) -> Iterator[str]:
    yield from (str(overlap) for overlap in history.overlaps())
    yield from (f"the fence did not grow: {pair}" for pair in history.fences_out_of_order())


def granted(subject: Subject, timeout: float) -> SubjectClaim:
    claim = subject.acquire(timeout)
    if claim is None:
        raise AssertionError(f"not granted within {timeout:g} s")
    return claim


@contextmanager
def taken(subject: Subject, belief: Belief) -> Iterator[SubjectClaim | None]:
    """The lease of a client that tries for as long as the holder surely holds."""
    until = now() + belief.lease.remaining() / 2
    claim = None
    while claim is None and now() < until:
        claim = subject.acquire(0)
        time.sleep(GAP)
    yield claim
    if claim is not None:
        claim.release()
