"""Which of our files run functions while something is done."""

from __future__ import annotations

import gc
import math
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from garbage import collected

import lockkit

ROOT = Path(lockkit.__file__).parent.parent
PACKAGES = ("lockkit", "lockkit_django", "lockkit_flask")


def files_entered(call: Callable[[], Any]) -> Counter[str]:
    """How often a function of each file is called, in this thread and in those that it starts.
    Finalizers of older garbage do not count, nor threads that begin now but were started before."""
    found: Counter[str] = Counter()
    # Also those that were made and have not begun: another thread starts the one of a client.
    made = tuple(threading._dangling.data)  # type: ignore[attr-defined]  # at once: others add to it
    others = {reference() for reference in made}

    def note(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and ROOT in path.parents:
            name = path.relative_to(ROOT)
            if name.parts[0] in PACKAGES:
                found[str(name)] += 1

    def note_elsewhere(frame: FrameType, event: str, argument: Any) -> None:
        if threading.current_thread() not in others:
            note(frame, event, argument)

    collected()
    collects = gc.isenabled()
    gc.disable()
    threading.setprofile(note_elsewhere)
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        if collects:
            gc.enable()
    return found


def calls_of_ours(call: Callable[[], Any]) -> int:
    """How many functions of ours it calls, after one call for warming up."""
    call()
    return files_entered(call).total()


def is_calm(client: lockkit.LockClient) -> bool:
    """Its watchdog, which the first lock has started, sleeps: the next one need not wake it."""
    return 0 < client._watchdog._schedule._wake_at < math.inf
