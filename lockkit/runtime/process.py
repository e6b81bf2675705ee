"""This process: its identity, and hooks for its forks and its exit.

``generation`` changes in a forked child. An object that belongs to a process (a lease, a socket, a
thread) remembers the generation in which it was made, and is not touched in another. Comparing two
ints is cheaper than asking the kernel for the pid each time.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lockkit.model.clock import now
from lockkit.model.log import log_error
from lockkit.model.types import REPAIRED, Owner

EXIT_SECONDS = 3.0
"""For all work at the exit of the process together: a store that is down must not delay it."""

TOKEN_BYTES = 16

LONGEST_LABEL = 200


class _Process:
    def __init__(self) -> None:
        self.generation = 0
        self.host = os.uname().nodename
        self.renew()
        self.known_as = self.pid
        self.noticing = threading.RLock()

    def renew(self) -> None:
        self.generation += 1
        self.space = _space()
        pid = os.getpid()
        self.be(pid, started(pid))
        self.registering = threading.RLock()  # the parent's may be held by a thread that is gone

    def be(self, pid: int, started: str) -> None:
        self.pid = pid
        self.started = started
        self.owner_text = _around(Owner(self.host, pid, "", "", self.space, started))


def _around(owner: Owner) -> tuple[str, str, str]:
    """The parts of the owner's text before, between and after its thread and its label."""
    mark = "\n"
    before, between, after = owner._replace(thread=mark, label=mark).encode().split(mark)
    return before, between, after


def _space() -> str:
    """The boot and the namespaces within which a pid, with the start of its process, is unique.
    They tell apart containers and cloned machines that have the same host name.

    The time namespace is part of it, because it shifts the moments at which processes started.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id") as boot:
            return ".".join((boot.read(13), _namespace("pid"), _namespace("time")))
    except OSError:
        return ""


def _namespace(kind: str) -> str:
    try:
        return f"{os.stat(f'/proc/self/ns/{kind}').st_ino:x}"
    except FileNotFoundError:  # an older kernel has no time namespaces
        if kind == "time":
            return "0"
        raise


def status(pid: int) -> list[bytes]:
    """The fields of /proc/…/stat, from the state of the process on. Empty if there are none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()
    except OSError:
        return []


def started(pid: int) -> str:
    """When the process started, in clock ticks since the boot. Empty if that is not known, because
    /proc is missing or shows another pid namespace."""
    try:
        if os.readlink("/proc/self") != str(os.getpid()):
            return ""
        ticks = status(pid)[19]
    except (OSError, IndexError):
        return ""
    return ticks.decode() if ticks.isdigit() else ""


def is_here(owner: Owner) -> bool:
    """Whether its pid means something in this process, or the system does not say where it does."""
    return owner.host == _process.host and owner.space == _process.space


def is_dead(owner: Owner) -> bool:
    """Whether the owner's process is certainly gone. False: it is alive, or that is not known.

    It can be known only within the same boot, pid namespace and time namespace. There, the process
    is gone if its pid does not exist, or is that of a process that started at another moment.
    Limit: if the pid is now that of another user's process, the answer is False.
    """
    if not owner.space or not is_here(owner) or owner.pid <= 0:
        return False
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    found = started(owner.pid) if owner.started else ""
    return bool(found) and found != owner.started


_process = _Process()
_Method = weakref.WeakMethod[Callable[..., Any]]
_after_fork: list[_Method] = []


def generation() -> int:
    return _process.generation


def is_generation(number: int) -> bool:
    """Whether this process has this generation. Notices a fork made in C: see ``notice_fork``."""
    if os.getpid() != _process.known_as:
        notice_fork()
    return number == _process.generation


def notice_fork() -> None:
    """Call this before you use the identity of this process. A fork made in C, such as uWSGI's,
    calls no hook. Without this call, the child would lock in the name of its parent, and its leases
    would count as a dead owner's as soon as the parent is gone."""
    if os.getpid() != _process.known_as:
        with _process.noticing:
            if os.getpid() != _process.known_as:
                _in_child()


@contextmanager
def acting_for(pid: int) -> Iterator[None]:
    """Within the block, this process locks on behalf of another one: owners have that one's pid, so
    they count as alive as long as it lives."""
    mine = _process.pid, _process.started
    _process.be(pid, started(pid))
    try:
        yield
    finally:
        _process.be(*mine)


def owner(label: str) -> Owner:
    """This process and thread as an owner."""
    return Owner.decode(owner_text(label))


def owner_text(label: str, thread: str | None = None) -> str:
    """This process and thread, or the named asyncio task, as an encoded owner."""
    if os.getpid() != _process.known_as:
        notice_fork()
    before, between, after = _process.owner_text
    name = thread or threading.current_thread().name
    if not name.isprintable() or len(name) > LONGEST_LABEL:
        name = _printable(name)
    return f"{before}{name}{between}{label and _printable(label)}{after}"


def runs_a_loop() -> bool:
    """Whether the calling thread runs an event loop of asyncio."""
    running = getattr(sys.modules.get("asyncio"), "_get_running_loop", None)
    return running is not None and running() is not None


def new_token() -> str:
    """128 random bits in hexadecimal: what proves the right to extend and to release.

    Each is drawn when it is needed. Those kept in memory would be the same in every process that is
    restored from one snapshot, and such processes would share leases.
    """
    return os.urandom(TOKEN_BYTES).hex()  # the import of secrets takes longer than lockkit's own


def operator(by: str, *, repairs: bool = False) -> str:
    """The text that tells a holder who broke its lease, or who ``repairs`` the record of its name.
    If ``by`` is empty: this process."""
    who = _printable(by) or str(owner(""))
    return f"{REPAIRED}{who}" if repairs else who


def _printable(text: str) -> str:
    """At most LONGEST_LABEL printable characters: a label or the name of a thread is shown to
    people, and may come from a request."""
    text = text[:LONGEST_LABEL]
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else "?" for c in text)


def after_fork(method: Callable[[], Any]) -> None:
    """Have a bound method called in every forked child, as long as its object lives."""
    _register(_after_fork, method)


def in_each_process(method: Callable[[], Any]) -> None:
    """Call a bound method now, and in every forked child, as long as its object lives."""
    method()
    after_fork(method)


def around_fork(before: Callable[[], Any], in_parent: Callable[[], Any]) -> None:
    """Have bound methods called: ``before`` once, ahead of each fork; ``in_parent`` twice after it.

    A fork made in C, such as uWSGI's, does not call them: the child must not rely on them.
    """
    _register(_before_fork, before)
    _register(_in_parent, in_parent)


def at_exit(begin: Callable[[], Any], finish: Callable[[float], Any]) -> None:
    """Have bound methods called when the interpreter exits: all ``begin``, then all ``finish``,
    which get the moment of the local clock by which to be done.

    By then, all threads that are not daemons have ended, and no thread can be started any more.
    Not called in a process that is killed or leaves by ``os._exit``, such as those that
    ``multiprocessing`` forks.
    """
    _register(_beginning_exit, begin)
    _register(_finishing_exit, finish)


def _register(registered: list[_Method], method: Callable[..., Any]) -> None:
    """By one thread at a time: otherwise one of two methods could be forgotten."""
    with _process.registering:
        registered[:] = [reference for reference in registered if reference() is not None]
        registered.append(weakref.WeakMethod(method))


_before_fork: list[_Method] = []
_in_parent: list[_Method] = []
_beginning_exit: list[_Method] = []
_finishing_exit: list[_Method] = []


def _call(registered: list[_Method]) -> None:
    for reference in list(registered):
        if (method := reference()) is not None:
            method()


def _in_child() -> None:
    _process.renew()
    _call(_after_fork)
    _process.known_as = os.getpid()


os.register_at_fork(
    before=lambda: _call(_before_fork),
    after_in_parent=lambda: _call(_in_parent),
    after_in_child=_in_child,
)
# Once more: the handler of a signal that came during the fork may interrupt the first call, and
# Python does not raise that error.
os.register_at_fork(after_in_parent=lambda: _call(_in_parent))


@atexit.register
def _exit() -> None:
    notice_fork()  # in a child, the leases and the threads that would release them are the parent's
    until = now() + EXIT_SECONDS
    _call_each(_beginning_exit)
    _call_each(_finishing_exit, until)


def _call_each(registered: list[_Method], *arguments: object) -> None:
    """Call all of them, even if one raises: nobody would call the others later."""
    for reference in list(registered):
        try:
            if (method := reference()) is not None:
                method(*arguments)
        except Exception:  # noqa: BLE001
            log_error("something failed at the exit, so leases may be left to expire")
