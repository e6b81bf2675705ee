"""Several readers at once: one that is slow does not keep the others from being shown."""

from __future__ import annotations

import contextvars
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

__all__ = ["side_by_side"]

T = TypeVar("T")

AHEAD = 2
"""Pages that a reader may be ahead of what is shown: so memory does not grow with the stores."""

TURN = 0.2
"""Seconds for which the first reader may keep the others waiting, so that the order is steady."""


def side_by_side(readers: Mapping[str, Iterator[T]]) -> Iterator[T]:
    """What they read: in their order, but for those that are slow. Raises what one of them does,
    in its turn."""
    if len(readers) == 1:
        yield from next(iter(readers.values()))
        return
    reading = _Reading[T](readers)
    try:
        yield from reading.pages()
    finally:
        reading.stop()


class _Reading(Generic[T]):
    def __init__(self, readers: Mapping[str, Iterator[T]]) -> None:
        self._changed = threading.Condition()
        self._stopped = False
        self._read: dict[str, deque[T]] = {key: deque() for key in readers}
        self._ended: dict[str, BaseException | None] = {}
        for key, reader in readers.items():
            threading.Thread(
                target=contextvars.copy_context().run,
                args=(self._run, key, reader),
                name="lockkit-look",
                daemon=True,  # one that hangs does not keep the command from ending
            ).start()

    def pages(self) -> Iterator[T]:
        while self._read:
            with self._changed:
                self._changed.wait_for(self._first_is_ready, TURN)
                self._changed.wait_for(self._any_is_ready)
                key = next(filter(self._is_ready, self._read))
                found = list(self._read[key])
                self._read[key].clear()
                is_over = key in self._ended
                if is_over:
                    del self._read[key]
                self._changed.notify_all()
            yield from found
            if is_over and (error := self._ended[key]) is not None:
                raise error

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _run(self, key: str, reader: Iterator[T]) -> None:
        error: BaseException | None = None
        try:
            for page in reader:
                with self._changed:
                    self._read[key].append(page)
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self._stopped or len(self._read[key]) < AHEAD)
                    if self._stopped:
                        return
        except BaseException as raised:  # noqa: BLE001  the one who asked for it gets it
            error = raised
        finally:
            with self._changed:
                self._ended[key] = error
                self._changed.notify_all()

    def _is_ready(self, key: str) -> bool:
        return bool(self._read[key]) or key in self._ended

    def _first_is_ready(self) -> bool:
        return self._is_ready(next(iter(self._read)))

    def _any_is_ready(self) -> bool:
        return any(map(self._is_ready, self._read))
