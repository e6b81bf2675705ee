"""The one local clock. It is monotonic, and goes on while the machine sleeps.

CLOCK_MONOTONIC stands still during suspend on Linux, so a lease would look alive on a laptop or
a migrated virtual machine that slept past its TTL. CLOCK_BOOTTIME does not.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable


def _choose() -> Callable[[], float]:
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    if boottime is None:
        return time.monotonic
    return functools.partial(time.clock_gettime, boottime)


now: Callable[[], float] = _choose()
"""Seconds since an arbitrary moment; only differences have a meaning."""
