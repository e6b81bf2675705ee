"""Exclusion: an unfenced counter loses updates only when two hold the lock at once."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import ClassVar

import pytest

from lockkit.stores import contract
from lockkit.stores.contract import ProcessLocal
from lockkit.testing.agent import ANSWER_SECONDS
from lockkit.testing.blocking import AnyClient, Api
from lockkit.testing.checkers import Counter, History, Interval
from lockkit.testing.conformance.base import PROCESSES, Agents, Connect, Spawn, needs

WORKERS = 8
UNFAIR_CYCLES = 50
LONGEST = 4 * ANSWER_SECONDS


class ExclusionTests:
    cycles: ClassVar[int]
    tested: ClassVar[type[contract.Store]]

    @needs(PROCESSES)
    def test_eight_processes_exclude_one_another(
        self, agents: Agents, api: Api, name: str, tmp_path: Path
    ) -> None:
        counter = Counter(tmp_path / "counter")
        share = self.cycles // WORKERS // 2
        running = [
            agent.cycles(api=api, name=name, cycles=share, path=str(counter.path))
            for agent in agents(WORKERS)
        ]
        judge(history_of(running), counter, share * WORKERS)

    @needs(PROCESSES)
    def test_those_who_do_not_wait_their_turn_exclude_one_another(
        self, agents: Agents, api: Api, name: str
    ) -> None:
        running = [
            agent.share(api=api, name=name, uses=uses, cycles=UNFAIR_CYCLES)
            for agent, uses in zip(agents(4), [["unfair"], ["lock"]] * 2, strict=True)
        ]
        each_was_alone(history_of(running), 4 * UNFAIR_CYCLES)

    def test_eight_threads_exclude_one_another(
        self, connect: Connect, name: str, spawn: Spawn, tmp_path: Path
    ) -> None:
        """Two clients stand for two processes if the store is within one process."""
        counter = Counter(tmp_path / "counter")
        several = not issubclass(self.tested, ProcessLocal)
        share = (200 if several else self.cycles // 2) // WORKERS
        clients = [connect(), connect()]
        running = [
            spawn(cycle, clients[number % 2], name, counter, share) for number in range(WORKERS)
        ]
        judge(history_of(running), counter, share * WORKERS)

    @pytest.mark.parametrize("names", [3])
    def test_names_do_not_wait_for_one_another(
        self, client: AnyClient, other: AnyClient, name: str, names: int
    ) -> None:
        leases = [client.lock(f"{name}:{number}").acquire() for number in range(names)]
        with other.lock(name, timeout=0).acquire():
            assert all(lease.release() for lease in leases)


def cycle(client: AnyClient, name: str, counter: Counter, cycles: int) -> list[Interval]:
    history = History()
    for _ in range(cycles):
        lease = client.lock(name, timeout=60).acquire()
        with history.believing(name, "thread", lease):
            counter.increment()
        assert lease.release()
    return history.intervals


def history_of(running: Iterable[Future[list[Interval]]]) -> History:
    """All that these have relied on. The intervals of another process come as lists."""
    found = [future.result(LONGEST) for future in running]
    return History(Interval(*interval) for intervals in found for interval in intervals)


def each_was_alone(history: History, expected: int) -> None:
    assert not [str(overlap) for overlap in history.overlaps()]
    assert not [str(pair) for pair in history.fences_out_of_order()]
    assert len(history.intervals) == expected


def judge(history: History, counter: Counter, expected: int) -> None:
    assert expected, f"cycles must be {2 * WORKERS} at least: one for each worker, through each API"
    each_was_alone(history, expected)
    assert counter.value == expected
