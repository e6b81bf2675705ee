"""This process: who it is, and that a forked child is another one.

``generation`` changes in a forked child. What belongs to a process (a lease, a socket, a thread)
remembers the generation it was made in and is not touched in another: comparing two ints is
cheaper than asking the kernel for the pid each time.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import weakref
from collections.abc import Callable
from typing import Any

from lockkit.types import Owner

__all__ = ["after_fork", "generation", "host", "instance_id", "owner"]


class _Process:
    __slots__ = ("generation", "host", "instance", "pid", "prefix")

    def __init__(self) -> None:
        self.generation = 0
        self.host = socket.gethostname()
        self.renew()

    def renew(self) -> None:
        self.generation += 1
        self.pid = os.getpid()
        self.instance = secrets.token_hex(8)


_process = _Process()
_after_fork: list[weakref.WeakMethod[Callable[[], Any]]] = []


def generation() -> int:
    return _process.generation


def host() -> str:
    return _process.host


def instance_id() -> str:
    """Random, per process: names its wake-up channel."""
    return _process.instance


def owner(label: str, thread: str | None = None) -> Owner:
    """This process and thread (or the named asyncio task) as an owner."""
    return Owner(
        _process.host, _process.pid, thread or threading.current_thread().name, _printable(label)
    )


def _printable(label: str) -> str:
    """At most 200 printable characters: a label is shown to people and may come from a request."""
    label = label[:200]
    if label.isprintable():
        return label
    return "".join(c if c.isprintable() else "?" for c in label)


def after_fork(method: Callable[[], Any]) -> None:
    """Have a bound method called in every forked child, as long as its object lives."""
    _after_fork[:] = [reference for reference in _after_fork if reference() is not None]
    _after_fork.append(weakref.WeakMethod(method))


def _in_child() -> None:
    _process.renew()
    for reference in list(_after_fork):
        method = reference()
        if method is not None:
            method()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
