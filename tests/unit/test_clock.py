"""The local clock: a lease is over after a suspend that was longer than its TTL."""

from __future__ import annotations

import subprocess
import sys

import pytest

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no CLOCK_BOOTTIME")

ASLEEP = """
import time
read, asleep = time.clock_gettime, 0
time.clock_gettime = lambda clock: read(clock) + (clock == time.CLOCK_BOOTTIME) * asleep
import lockkit
with lockkit.connect("memory://") as locks:
    lease = locks.lock("nightly-report", ttl=3600).acquire()
    assert not lease.lost
    asleep = 3601
    print(lease.lost)
"""
"""The kernel's clocks as they are after a suspend: only one of them has gone on."""


@LINUX
def test_a_lease_does_not_outlive_a_suspend() -> None:
    assert subprocess.check_output([sys.executable, "-c", ASLEEP], text=True) == "True\n"
