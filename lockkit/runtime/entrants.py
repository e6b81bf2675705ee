"""Keys of those that may enter a lock again: of a thread, of a task, or of an owner that is named.

A key is forgotten with its thread or task, and a forked child has keys of its own. So nobody enters
a lock again that somebody else holds.
"""

from __future__ import annotations

import threading
import weakref
from functools import cache
from typing import TYPE_CHECKING, Any

from lockkit.runtime import process

if TYPE_CHECKING:
    import asyncio


class _Keys(threading.local):
    """The key of a thread, and those of the tasks that run in it."""

    def __init__(self) -> None:
        self.thread: tuple[int, str] | None = None
        self.tasks: weakref.WeakKeyDictionary[asyncio.Task[Any], tuple[int, str]] = (
            weakref.WeakKeyDictionary()
        )


_keys: Any = _Keys()


def named(owner: str) -> str:
    """The key of everybody who names this owner, in any process."""
    return "=" + owner.encode().hex()


def of_thread() -> str:
    """The key of the calling thread."""
    keys = _of_callers()
    key = keys.thread = _valid(keys.thread)
    return key[1]


def of_task(task: asyncio.Task[Any] | None) -> str:
    """The key of a task of this thread's loop. Without a task: the key of the thread."""
    if task is None:
        return of_thread()
    tasks = _of_callers().tasks
    key = tasks[task] = _valid(tasks.get(task))
    return key[1]


def of_caller() -> str:
    """The key of the task that runs in this thread; if none does, of the thread."""
    if not process.runs_a_loop():
        return of_thread()
    import asyncio

    return of_task(asyncio.current_task())


def _of_callers() -> Any:
    """``_keys``, unless gevent has patched since: then its greenlets would share one key."""
    return _keys if isinstance(_keys, threading.local) else _of_greenlets()


@cache
def _of_greenlets() -> Any:
    return type("_Keys", (threading.local,), {"__init__": _Keys.__init__})()


def _valid(key: tuple[int, str] | None) -> tuple[int, str]:
    """The same key. A new one if there is none, or if it was made before a fork."""
    generation = process.generation()
    if key is not None and key[0] == generation:
        return key
    return generation, process.new_token()
