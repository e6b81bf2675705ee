"""The one local clock. It is monotonic, and goes on while the machine sleeps (Linux, macOS).

``time.monotonic`` stands still during suspend on both, so a lease would look alive on a laptop that
slept past its TTL. Linux's CLOCK_BOOTTIME and macOS's CLOCK_MONOTONIC_RAW go on. Limit: while a
hypervisor pauses a virtual machine, to move or to save it, none of the machine's clocks goes on.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable


def _choose() -> Callable[[], float]:
    name = "CLOCK_MONOTONIC_RAW" if sys.platform == "darwin" else "CLOCK_BOOTTIME"
    clock = getattr(time, name, None)
    if clock is None:
        return time.monotonic
    return functools.partial(time.clock_gettime, clock)


now: Callable[[], float] = _choose()
"""Seconds since an arbitrary moment; only differences have a meaning."""
