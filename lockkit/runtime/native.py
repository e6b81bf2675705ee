"""Threads of the operating system, even where gevent has replaced them by greenlets.

A watchdog that is a greenlet gets no turn while another one computes, and the lease is lost. A real
thread gets one. But it must not share with greenlets a lock that they hold while they wait, or a
socket, which belongs to the event loop of one thread.
"""

from __future__ import annotations

import _thread
import select
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeAlias

from lockkit.model.errors import BackendUnavailable


def is_patched() -> bool:
    """Whether a thread that is started now would be a greenlet."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))


def lock() -> Any:
    """A real lock: for the few instructions in which no greenlet can be switched."""
    return _original("allocate_lock")()


def mutex() -> Any:
    """A real RLock: while a thread has it, the garbage collector may end a block there, or the
    handler of a signal may take a lock."""
    return _original("RLock")()


def refuse_return(mutex: Any) -> None:
    """Raise BackendUnavailable if this thread has the mutex already: the garbage collector, or the
    handler of a signal, came half-way through a step. A release is made later."""
    if mutex._is_owned():
        raise BackendUnavailable("this thread is in the middle of another step of the same store")


def start(
    target: Callable[..., object], arguments: tuple[Any, ...], name: str, *, shares: bool = False
) -> None:
    """Start a real thread that the interpreter does not wait for. Raises RuntimeError.

    ``shares``: it makes a socket that greenlets will use, so under gevent it is a greenlet, too.

    ``Thread.start`` waits on an Event, whose own lock an interrupt leaves half-way. So another
    thread, in which no handler of a signal runs, calls it."""
    start_new_thread = _original("start_new_thread")
    if is_patched() and not shares:
        start_new_thread(target, arguments)
        return
    thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
    if is_patched():
        thread.start()
    else:
        start_new_thread(_start, (thread,))


def _start(thread: threading.Thread) -> None:
    try:
        thread.start()
    except RuntimeError:  # no more threads: this one does its work
        thread.run()


class Wake:
    """What a thread sleeps on; a call to wake it that comes early is not forgotten."""

    def __init__(self, make_lock: Callable[[], Any] | None = None) -> None:
        """``make_lock``: ``threading.Lock``, if a greenlet may wait. It is a lock in C, and not an
        Event, whose own lock stays locked if an interrupt comes within it."""
        self._asleep = (make_lock or lock)()
        self._asleep.acquire()

    def set(self) -> None:
        if self._asleep.locked():
            try:
                self._asleep.release()
            except RuntimeError:  # another thread was faster
                return

    def wait(self, seconds: float) -> bool:
        """Wait for ``seconds`` at most; return whether somebody called."""
        return bool(self._asleep.acquire(timeout=seconds))


Poll: TypeAlias = Callable[[float], list[tuple[int, int]]]
"""Waits for so many milliseconds at most; what it returns is true if the socket is ready."""


def poll(descriptor: int, events: int = select.POLLIN) -> Poll:
    """A Poll of one socket, to be used again, by one thread at a time. Under gevent a poll object
    belongs to the event loop of the thread that has made it, so there each wait makes one."""

    def made() -> select.poll:
        found = select.poll()
        found.register(descriptor, events)
        return found

    return (lambda milliseconds: made().poll(milliseconds)) if is_patched() else made().poll


def _original(name: str) -> Any:
    if is_patched():
        return sys.modules["gevent.monkey"].get_original("_thread", name)
    return getattr(_thread, name)
