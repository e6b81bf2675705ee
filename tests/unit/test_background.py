"""Threads that work for an object."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator

import pytest

from lockkit.runtime.background import Background


class Worker(Background):
    """One in a cycle, as many objects are."""

    def __init__(self) -> None:
        self.itself = self
        self.slept = threading.Event()
        self.by = ended_by
        super().__init__()

    def begin(self) -> None:
        self._hurry()

    def close(self) -> None:
        self._end()

    def work(self) -> float:
        self.slept.set()
        return 60.0

    def ended(self) -> None:
        self.by.append(threading.current_thread().name)
        has_ended.set()


ended_by: list[str] = []
has_ended = threading.Event()


@pytest.fixture
def long_turns() -> Iterator[None]:
    """Another thread runs only when this one waits."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(60.0)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("long_turns")
def test_a_thread_that_was_told_to_end_ends_what_nobody_refers_to_any_more() -> None:
    """Otherwise the collector would, in any order: first a connection, which then warns that it was
    left open, and then its owner, which would have closed it."""
    worker = Worker()
    worker.begin()
    assert worker.slept.wait(60)
    worker.close()
    del worker
    gc.collect()
    assert has_ended.wait(60)
    assert ended_by[:1] == [Worker.thread_name]
