"""This process: who it is, and that a forked child is another one.

``generation`` changes in a forked child. What belongs to a process (a lease, a socket, a thread)
remembers the generation it was made in and is not touched in another: comparing two ints is
cheaper than asking the kernel for the pid each time.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

from lockkit.clock import now
from lockkit.types import Owner

__all__ = [
    "after_fork",
    "around_fork",
    "at_exit",
    "generation",
    "host",
    "instance_id",
    "operator",
    "owner",
    "owner_text",
    "space",
]


REMEMBERED_OWNERS = 256

EXIT_SECONDS = 3.0
"""For all that is to be done at the end of the process: a store that is down must not delay it."""


class _Process:
    __slots__ = ("generation", "host", "instance", "owners", "pid", "registering", "space")

    def __init__(self) -> None:
        self.generation = 0
        self.host = os.uname().nodename
        self.renew()

    def renew(self) -> None:
        self.generation += 1
        self.pid = os.getpid()
        self.space = _space()
        self.owners: dict[tuple[str, str], str] = {}
        self.instance = os.urandom(8).hex()
        self.registering = threading.RLock()  # the parent's may be held by a thread that is gone


def _space() -> str:
    """Tells apart what shares a host name and not its processes: containers, cloned machines."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as boot:
            return f"{boot.read(13)}.{os.stat('/proc/self/ns/pid').st_ino:x}"
    except OSError:
        return ""


_process = _Process()
_Method = weakref.WeakMethod[Callable[..., Any]]
_after_fork: list[_Method] = []


def generation() -> int:
    return _process.generation


def host() -> str:
    return _process.host


def space() -> str:
    """Where this process's pid means something; empty where the system does not say."""
    return _process.space


def instance_id() -> str:
    """Random, per process: two of one pid are told apart."""
    return _process.instance


def owner(label: str, thread: str | None = None) -> Owner:
    """This process and thread (or the named asyncio task) as an owner."""
    return Owner(
        _process.host,
        _process.pid,
        thread or threading.current_thread().name,
        _printable(label),
        _process.space,
    )


def owner_text(label: str, thread: str | None = None) -> str:
    """The same, encoded; remembered, because a process names the same few again and again."""
    name = thread or threading.current_thread().name
    key = (label, name)
    text = _process.owners.get(key)
    if text is None:
        if len(_process.owners) >= REMEMBERED_OWNERS:
            _process.owners.clear()
        text = _process.owners[key] = owner(label, name).encode()
    return text


def operator(by: str) -> str:
    """Who breaks a lease, for its holder to read: as it is said, else this process."""
    return _printable(by) or str(owner(""))


def _printable(label: str) -> str:
    """At most 200 printable characters: a label is shown to people and may come from a request."""
    label = label[:200]
    if label.isprintable():
        return label
    return "".join(c if c.isprintable() else "?" for c in label)


def after_fork(method: Callable[[], Any]) -> None:
    """Have a bound method called in every forked child, as long as its object lives."""
    _register(_after_fork, method)


def around_fork(before: Callable[[], Any], in_parent: Callable[[], Any]) -> None:
    """Have bound methods called before each fork, and after it in the parent.

    A fork made in C, as uwsgi's, does not call them: the child must not rely on them.
    """
    _register(_before_fork, before)
    _register(_in_parent, in_parent)


def at_exit(begin: Callable[[], Any], finish: Callable[[float], Any]) -> None:
    """Have bound methods called when the interpreter exits: all ``begin``, then all ``finish``,
    which get the moment of the local clock by which to be done.

    By then, all threads that are not daemons have ended, and no thread can be started any more.
    Not called in a process that is killed or leaves by ``os._exit``, as those that
    ``multiprocessing`` forks.
    """
    _register(_beginning_exit, begin)
    _register(_finishing_exit, finish)


def _register(registered: list[_Method], method: Callable[..., Any]) -> None:
    """Not while another thread does so: one of the two would be forgotten."""
    with _process.registering:
        registered[:] = [reference for reference in registered if reference() is not None]
        registered.append(weakref.WeakMethod(method))


_before_fork: list[_Method] = []
_in_parent: list[_Method] = []
_beginning_exit: list[_Method] = []
_finishing_exit: list[_Method] = []


def _call(registered: list[_Method], *arguments: object) -> None:
    for reference in list(registered):
        method = reference()
        if method is not None:
            method(*arguments)


def _in_child() -> None:
    _process.renew()
    _call(_after_fork)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _call(_before_fork),
        after_in_parent=lambda: _call(_in_parent),
        after_in_child=_in_child,
    )


@atexit.register
def _exit() -> None:
    until = now() + EXIT_SECONDS
    _call(_beginning_exit)
    _call(_finishing_exit, until)
