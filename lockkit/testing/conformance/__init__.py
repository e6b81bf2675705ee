"""The suite every backend passes: subclass one class and say how your store is reached.

::

    from lockkit.testing.conformance import KINDS, StoreConformance, Needs
    from lockkit.testing.servers import RedisServer
    from lockkit.testing.store import RedisStore

    class TestRedis(StoreConformance):
        schemes = ("redis",)
        provides = Needs.PROCESSES | Needs.SERVER | Needs.PUSH | KINDS | Needs.SCRIPTS

        @pytest.fixture(scope="class")
        @classmethod
        def store(cls):
            with RedisServer() as server:
                yield RedisStore(server)

Every test runs twice, through the blocking and through the asyncio API. Tests of what the store has
not (a server, messages, scripts) are not there; a test compares what is provided with the backend's
capabilities, so that nobody is excused from what it claims.
"""

from __future__ import annotations

from lockkit.testing.conformance.asynchronous import AsyncTests
from lockkit.testing.conformance.base import Needs, Suite
from lockkit.testing.conformance.death import DeathTests
from lockkit.testing.conformance.exclusion import ExclusionTests
from lockkit.testing.conformance.leases import LeaseTests
from lockkit.testing.conformance.names import NameTests
from lockkit.testing.conformance.network import NetworkTests
from lockkit.testing.conformance.outages import OutageTests
from lockkit.testing.conformance.queueing import QueueTests
from lockkit.testing.conformance.readers import ReaderWriterTests
from lockkit.testing.conformance.reentry import ReentryTests
from lockkit.testing.conformance.semaphores import SemaphoreTests
from lockkit.testing.conformance.several import SeveralTests
from lockkit.testing.conformance.steps import StepTests

__all__ = ["KINDS", "Needs", "StoreConformance"]

KINDS = Needs.SHARED | Needs.REENTRANT
"""Every kind of lock."""


class StoreConformance(
    StepTests,
    LeaseTests,
    NameTests,
    ExclusionTests,
    QueueTests,
    SemaphoreTests,
    ReaderWriterTests,
    ReentryTests,
    SeveralTests,
    DeathTests,
    NetworkTests,
    OutageTests,
    AsyncTests,
    Suite,
):
    """All of it. Override ``store``; set ``schemes`` and ``provides``."""
