"""Threads that lock a name again and again while something happens to its store."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Self

from redis_family import until

import lockkit

MANY = 100
"""Grants."""


class Rush:
    """``with Rush(clients, name):``: a thread for each client. At the end nobody was ever inside
    together with another one, and the fencing tokens grew. Errors are allowed."""

    def __init__(self, clients: Sequence[lockkit.LockClient], name: str) -> None:
        self._name = name
        self._end = threading.Event()
        self._inside = self._most = 0
        self._threads = [threading.Thread(target=self._work, args=(each,)) for each in clients]
        self.fences: list[int] = []
        self.errors = 0

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()
        assert self._most == 1, f"{self.errors} errors"
        assert self.fences == sorted(set(self.fences))

    def goes_on(self) -> None:
        """Return when the name was granted many times from now on."""
        before = len(self.fences)
        until(lambda: len(self.fences) > before + MANY, f"{self._name!r} is granted")

    def _work(self, client: lockkit.LockClient) -> None:
        while not self._end.is_set():
            with suppress(lockkit.LockError), client.lock(self._name).acquire() as lease:
                self.fences.append(lease.fencing_token)
                self._inside += 1
                self._most = max(self._most, self._inside)
                self._inside -= 1
                lease.check()
                continue
            self.errors += 1
