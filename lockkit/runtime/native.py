"""Threads of the operating system, even where gevent has replaced them by greenlets.

A watchdog that is a greenlet would get no turn while another greenlet computes, and leases would be
lost. A real thread gets its turn. But it must not share a lock with greenlets that hold it while
they wait. Nor must it share a socket with them, which belongs to the event loop of one thread.
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


def mutex() -> Any:
    """A real RLock. While a thread has it, the garbage collector or a signal handler may run code
    in the same thread that takes it again."""
    return _original("RLock")()


def refuse_return(mutex: Any) -> None:
    """Raise BackendUnavailable if this thread has the mutex already: the garbage collector or a
    signal handler has interrupted a step half-way. The watchdog makes a refused release later."""
    if mutex._is_owned():
        raise BackendUnavailable("this thread is in the middle of another step of the same store")


def start(
    target: Callable[..., object], arguments: tuple[Any, ...], name: str, *, shares: bool = False
) -> None:
    """Start a real thread that the interpreter does not wait for. Raises RuntimeError if no thread
    can be started.

    ``shares``: it makes a socket that greenlets will use, so under gevent it is a greenlet, too.

    ``Thread.start`` waits on an Event, and an interrupt can leave the lock of the Event locked. So
    another thread calls it: signal handlers run only in the main thread."""
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
    except RuntimeError:  # no more threads can be started: this one does the work
        thread.run()


class Wake:
    """A thread waits on this until another one calls ``set``. An earlier call is not forgotten."""

    def __init__(self, make_lock: Callable[[], Any] | None = None) -> None:
        """``make_lock``: ``threading.Lock``, if a greenlet may wait. This is a lock in C, and not
        an Event, because an interrupt can leave the lock of an Event locked."""
        self._asleep = (make_lock or _original("allocate_lock"))()
        self._asleep.acquire()
        self.owner: Any = None  #: see ``Background``

    def set(self) -> None:
        if self._asleep.locked():
            try:
                self._asleep.release()
            except RuntimeError:  # another thread was faster
                return

    def wait(self, seconds: float) -> bool:
        """Wait for ``seconds`` at most. Returns whether ``set`` was called."""
        return bool(self._asleep.acquire(timeout=seconds))


Poll: TypeAlias = Callable[[float], list[tuple[int, int]]]
"""Waits for at most so many milliseconds. The list is empty unless the socket is ready."""


def poll(descriptor: int, events: int = select.POLLIN) -> Poll:
    """A Poll of one socket, for many waits, in one thread at a time. Under gevent a poll object
    belongs to the event loop of the thread that has made it, so there each wait makes a new one."""

    def made(milliseconds: float = 0) -> select.poll:
        found = select.poll() if milliseconds else _poll()
        found.register(descriptor, events)
        return found

    if is_patched():
        return lambda milliseconds: made(milliseconds).poll(milliseconds)
    return made().poll


def _poll() -> select.poll:
    """That of the system. gevent's gives other greenlets a turn, also if it is not to wait."""
    if is_patched():
        found: select.poll = sys.modules["gevent.monkey"].get_original("select", "poll")()
        return found
    return select.poll()


def _original(name: str) -> Any:
    if is_patched():
        return sys.modules["gevent.monkey"].get_original("_thread", name)
    return getattr(_thread, name)
