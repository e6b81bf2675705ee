"""The local clock: a lease is over after a suspend that was longer than its TTL."""

from __future__ import annotations

import subprocess
import sys

import pytest

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no CLOCK_BOOTTIME")

ASLEEP = """
import sys, time
system, clocks = sys.argv[1], {"linux": "CLOCK_BOOTTIME", "darwin": "CLOCK_MONOTONIC_RAW"}
goes_on = getattr(time, clocks[system])
if system == "darwin":
    del time.CLOCK_BOOTTIME
sys.platform = system
read, asleep = time.clock_gettime, 0
time.clock_gettime = lambda clock: read(clock) + (clock == goes_on) * asleep
import lockkit
with lockkit.connect("memory://") as locks:
    lease = locks.lock("nightly-report", ttl=3600).acquire()
    assert not lease.lost
    asleep = 3601
    print(lease.lost)
"""
"""The kernel's clocks as they are after a suspend: only one of them has gone on."""


@LINUX
@pytest.mark.parametrize("system", ["linux", "darwin"])
def test_a_lease_does_not_outlive_a_suspend(system: str) -> None:
    said = subprocess.check_output([sys.executable, "-c", ASLEEP, system], text=True)
    assert said == "True\n"
