"""A garbage collection that surely takes place, and the leases that nobody has released."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from lockkit import Lease
from lockkit.testing.conformance.base import eventually

LIVE_ON = {"lockkit-guard", "lockkit-zookeeper"}
"""The one is of the process, and the other ends with its client, to which pytest refers."""

WHOLE = 2
"""The generation that a collection of everything reports."""


def collected() -> None:
    """Return when a collection of everything has begun and ended. ``gc.collect`` alone does nothing
    while another thread collects, and what that one finalizes would warn in a later test."""
    ours = threading.get_ident()
    done: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and threading.get_ident() == ours:
            done.append(info["generation"])

    gc.callbacks.append(note)
    try:
        while WHOLE not in done:
            gc.collect()
            time.sleep(0)  # for the one that collects
    finally:
        gc.callbacks.remove(note)


@contextmanager
def no_thread_is_left() -> Iterator[None]:
    """Of lockkit's. The clients have been closed by the end."""
    before = {*threading.enumerate()}
    yield
    collected()

    def left() -> list[threading.Thread]:
        return [t for t in threading.enumerate() if t not in before and is_ours(t)]

    if left():
        eventually(lambda: not left())
        collected()  # what they have held until now: it would warn in a later test


def is_ours(thread: threading.Thread) -> bool:
    return thread.name.startswith("lockkit") and thread.name not in LIVE_ON


def unreleased() -> list[Lease]:
    """The leases of this process that nobody has released, whoever refers to them."""
    found = [each for each in gc.get_objects() if issubclass(type(each), Lease)]
    return [lease for lease in found if not lease.released]
