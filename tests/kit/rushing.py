"""Threads that lock a name again and again while something happens to its store."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
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
        self.errors: Counter[str] = Counter()

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()
        assert self._most == 1, self.errors
        assert self.fences == sorted(set(self.fences))

    def goes_on(self) -> None:
        """Return when the name was granted many times from now on."""
        before = len(self.fences)
        try:
            until(lambda: len(self.fences) > before + MANY, f"{self._name!r} is granted")
        except AssertionError as failed:
            failed.add_note(f"{len(self.fences) - before} grants, and these errors: {self.errors}")
            raise

    def _work(self, client: lockkit.LockClient) -> None:
        while not self._end.is_set():
            try:
                with client.lock(self._name).acquire() as lease:
                    self.fences.append(lease.fencing_token)
                    self._inside += 1
                    self._most = max(self._most, self._inside)
                    self._inside -= 1
                    lease.check()
            except lockkit.LockError as error:
                self.errors[repr(error)] += 1
