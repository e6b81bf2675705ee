"""Reads several stores at once, each in a thread of its own."""

from __future__ import annotations

import contextvars
import queue
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

AHEAD = 2
"""Pages that may be read before they are shown."""

TURN = 0.2
"""Seconds to wait for a store's next page before the next store has its turn. Waiting keeps the
order of the stores steady."""


def side_by_side(readers: Iterable[Iterator[list[T]]]) -> Iterator[list[T]]:
    """The pages in the order of the readers, except that a slow reader is passed over. A reader's
    exception is raised in its turn."""
    stopped = threading.Event()
    waiting = deque(_Reader(pages, stopped) for pages in readers)
    try:
        while waiting:
            try:
                page = waiting[0].read.get(timeout=TURN)
            except queue.Empty:
                waiting.rotate(-1)
                continue
            if isinstance(page, BaseException):
                raise page
            if page is None:
                waiting.popleft()
            else:
                yield page
    finally:
        stopped.set()


class _Reader(Generic[T]):
    """Reads pages in a thread. It ends soon after ``stopped`` is set, or with its process."""

    def __init__(self, pages: Iterator[list[T]], stopped: threading.Event) -> None:
        self.read: queue.Queue[list[T] | BaseException | None] = queue.Queue(AHEAD)
        self._pages = pages
        self._stopped = stopped
        run = contextvars.copy_context().run
        threading.Thread(target=run, args=(self._run,), name="lockkit-look", daemon=True).start()

    def _run(self) -> None:
        try:
            for page in self._pages:
                if not self._put(page):
                    return
        except BaseException as error:  # noqa: BLE001  raised where the pages are asked for
            self._put(error)
        else:
            self._put(None)

    def _put(self, item: list[T] | BaseException | None) -> bool:
        while not self._stopped.is_set():
            try:
                self.read.put(item, timeout=TURN)
            except queue.Full:
                continue
            return True
        return False
