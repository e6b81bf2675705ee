"""The checkers catch every wrong lock there is, and find nothing wrong with lockkit's."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from broken_locks import BROKEN, BrokenLock, Subject
from scenarios import violations

import lockkit
from lockkit.model.clock import now
from lockkit.testing.checkers import Belief, Counter, FencedRegister, History, Interval
from lockkit.testing.conformance.base import at_least_once, eventually
from lockkit.testing.proxy import FaultProxy
from lockkit.testing.servers import RedisServer

if TYPE_CHECKING:
    import redis


class Steps:
    """What the worlds of both kinds of lock have in common: a proxy, and a wall clock to set."""

    def __init__(self, server: RedisServer, stack: ExitStack, directory: Path) -> None:
        self.stack = stack
        self.directory = directory
        self.proxy = stack.enter_context(FaultProxy("127.0.0.1", server.port))
        self.direct_port = self.port = server.port
        self.offset = 0.0
        self.prefix = secrets.token_hex(4)

    def wall(self) -> float:
        return time.time() + self.offset

    def step_wall_clock(self, seconds: float) -> None:
        self.offset += seconds

    @contextmanager
    def slow_replies(self, seconds: float) -> Iterator[None]:
        self.port, self.proxy.latency = self.proxy.port, seconds
        yield
        self.port, self.proxy.latency = self.direct_port, 0.0


class BrokenWorld(Steps):
    def __init__(
        self,
        kind: type[BrokenLock],
        servers: list[RedisServer],
        stack: ExitStack,
        directory: Path,
        connect: Callable[[int], redis.Redis],
    ) -> None:
        super().__init__(servers[0], stack, directory)
        self.kind = kind
        self.others = [connect(server.port) for server in servers[1:]]
        self.connect = connect

    def subject(self, name: str, ttl: float) -> Subject:
        nodes = [self.connect(self.port), *self.others]
        return self.kind(nodes, f"{self.prefix}:{name}", ttl, self.wall)


class RightClaim:
    def __init__(self, lease: lockkit.Lease) -> None:
        self.lease = lease
        self.fencing_token = lease.fencing_token

    def remaining(self) -> float:
        return self.lease.remaining()

    def renew(self) -> None:
        with pytest.raises(lockkit.LeaseLost):
            self.lease.extend()

    def release(self) -> object:
        return self.lease.release()


class RightWorld(Steps):
    def subject(self, name: str, ttl: float) -> Subject:
        client = lockkit.connect(f"redis://127.0.0.1:{self.port}/0", ttl=ttl, max_hold=0)
        self.stack.callback(client.close)
        return _Right(client.lock(f"{self.prefix}:{name}"), self.stack)


class _Right:
    def __init__(self, lock: lockkit.Lock, stack: ExitStack) -> None:
        self.lock = lock
        self.stack = stack

    def acquire(self, timeout: float) -> RightClaim | None:
        try:
            lease = self.lock.acquire(timeout)
        except lockkit.AcquireTimeout:
            return None
        self.stack.callback(lease.release)
        return RightClaim(lease)


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[RedisServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(RedisServer()) for _ in range(3)]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def connect(stack: ExitStack) -> Callable[[int], redis.Redis]:
    import redis

    def connected(port: int) -> redis.Redis:
        client: redis.Redis = stack.enter_context(redis.Redis("127.0.0.1", port))
        return client

    return connected


CAUGHT_BY = {
    "NoNX": "crowd",
    "BlindDelete": "late_release",
    "DeadlineFromReply": "slow_reply",
    "WallClockDeadline": "clock_set_back",
    "FenceReset": "succession",
    "ResurrectingWatchdog": "late_renewal",
    "MinorityRedlock": "crowd",
}


@pytest.mark.parametrize("kind", BROKEN)
def test_every_broken_lock_is_caught(
    kind: type[BrokenLock],
    nodes: list[RedisServer],
    stack: ExitStack,
    connect: Callable[[int], redis.Redis],
    tmp_path: Path,
) -> None:
    def caught() -> bool:
        directory = tmp_path / secrets.token_hex(4)
        directory.mkdir()
        found = violations(BrokenWorld(kind, nodes, stack, directory, connect))
        return CAUGHT_BY[kind.__name__] in {sentence.partition(":")[0] for sentence in found}

    at_least_once(caught)


def test_there_are_seven() -> None:
    assert [kind.__name__ for kind in BROKEN] == list(CAUGHT_BY)


def test_lockkit_has_none_of_the_seven_faults(
    nodes: list[RedisServer], stack: ExitStack, tmp_path: Path
) -> None:
    assert violations(RightWorld(nodes[0], stack, tmp_path)) == []


def test_their_common_base_has_only_faults_of_its_own(
    nodes: list[RedisServer],
    stack: ExitStack,
    connect: Callable[[int], redis.Redis],
    tmp_path: Path,
) -> None:
    """So each of the seven is caught for its defect and for nothing else."""
    assert violations(BrokenWorld(BrokenLock, nodes, stack, tmp_path, connect)) == []


class Clockwork:
    """A claim whose remaining time a test sets."""

    def __init__(self, fence: int, left: float) -> None:
        self.fencing_token = fence
        self.left = left

    def remaining(self) -> float:
        return self.left


def interval(start: float, end: float, fence: int = 0, name: str = "a") -> Interval:
    return Interval(name, "somebody", start, end, fence)


class TestHistory:
    def test_one_after_the_other_is_fine(self) -> None:
        history = History([interval(1, 2, 1), interval(2, 3, 2), interval(0, 1, 0)])
        assert history.overlaps() == []
        assert history.fences_out_of_order() == []

    def test_two_at_once_are_found(self) -> None:
        history = History([interval(1, 3), interval(2, 4)])
        assert len(history.overlaps()) == 1
        assert "1000.000 ms" in str(history.overlaps()[0])

    def test_one_inside_a_long_one_is_found_also_after_a_short_one(self) -> None:
        history = History([interval(0, 10), interval(1, 2), interval(5, 6)])
        assert len(history.overlaps()) == 2

    def test_names_are_apart(self) -> None:
        assert History([interval(1, 3), interval(2, 4, name="b")]).overlaps() == []

    def test_a_fence_that_stands_still_is_found(self) -> None:
        history = History([interval(1, 2, 5), interval(3, 4, 5), interval(5, 6, 4)])
        assert len(history.fences_out_of_order()) == 2

    def test_belief_ends_with_the_release(self) -> None:
        history = History()
        with history.believing("a", "x", Clockwork(1, 100)):
            pass
        [seen] = history.intervals
        assert 0 <= seen.end - seen.start < 1

    def test_belief_ends_at_the_deadline_known_last(self) -> None:
        claim = Clockwork(1, 0.001)
        before = now()
        belief = Belief("a", "x", claim)
        after = now()
        eventually(lambda: now() > after + 0.002)
        claim.left = 0
        seen = belief.end()
        assert before <= seen.end - 0.001 <= after

    def test_the_histories_of_several_processes_add_up(self) -> None:
        history = History([interval(1, 3)])
        history += [interval(2, 4)]
        assert len(history.overlaps()) == 1


class TestCounter:
    def test_it_counts(self, tmp_path: Path) -> None:
        counter = Counter(tmp_path / "counter")
        assert [counter.increment() for _ in range(12)] == list(range(1, 13))
        assert Counter(tmp_path / "counter").value == 12


class TestFencedRegister:
    def test_it_takes_only_what_is_newer(self, tmp_path: Path) -> None:
        register = FencedRegister(tmp_path / "register")
        assert register.write(5, "a")
        assert not register.write(5, "b")
        assert not register.write(4, "c")
        assert FencedRegister(tmp_path / "register").write(6, "d")
        assert register.writes() == [(5, "a"), (6, "d")]
