"""What nobody refers to any more, collected for certain; and what somebody may refer to still."""

from __future__ import annotations

import gc
import threading
import time

from lockkit import Lease

WHOLE = 2
"""The generation that a collection of everything is of."""


def collected() -> None:
    """Return when a collection of everything has begun and ended. ``gc.collect`` alone does nothing
    while another thread collects: then what that one finalizes warns in a later test."""
    ours = threading.get_ident()
    done: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and threading.get_ident() == ours:
            done.append(info["generation"])

    gc.callbacks.append(note)
    try:
        while WHOLE not in done:
            gc.collect()
            time.sleep(0)  # for the one that collects
    finally:
        gc.callbacks.remove(note)


def unreleased() -> list[Lease]:
    """The leases of this process that nobody has released, whoever refers to them."""
    found = [each for each in gc.get_objects() if issubclass(type(each), Lease)]
    return [lease for lease in found if not lease.released]
