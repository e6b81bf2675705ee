"""A store that has passed the suite, reached in another way: TLS, the connections of a cache."""

from __future__ import annotations

from lockkit.testing.conformance.asynchronous import AsyncTests
from lockkit.testing.conformance.base import Suite
from lockkit.testing.conformance.death import DeathTests
from lockkit.testing.conformance.exclusion import ExclusionTests
from lockkit.testing.conformance.names import NameTests
from lockkit.testing.conformance.network import NetworkTests
from lockkit.testing.conformance.outages import OutageTests
from lockkit.testing.conformance.queueing import QueueTests


class OverAWire(
    ExclusionTests,
    NameTests,
    QueueTests,
    DeathTests,
    NetworkTests,
    OutageTests,
    AsyncTests,
    Suite,
):
    """Whatever a connection can spoil. What the store decides by itself is the same over each:
    single steps, leases in time, several names, the kinds of locks."""


class OverTLS(NetworkTests, Suite):
    """A store that has passed those without TLS, or over another way to its server."""
