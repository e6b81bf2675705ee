"""The suite every store passes: subclass one class and say how your store is reached.

::

    import pytest
    from lockkit.stores.redis import RedisStore
    from lockkit.testing.conformance import StoreConformance
    from lockkit.testing.servers import RedisServer
    from lockkit.testing.targets import RedisTarget

    class TestRedis(StoreConformance):
        schemes = ("redis",)
        tested = RedisStore
        reached = RedisTarget

        @pytest.fixture(scope="class")
        @classmethod
        def store(cls):
            with RedisServer() as server:
                yield RedisTarget(server)

Every test runs twice, through the blocking and through the asyncio API, except those for asyncio
only. Two classes choose the tests: that of the store by its traits, and that of the target by what
can be done to it (a server can be restarted). No test can be switched off by hand. A store that
other hosts can reach needs a ``ServerTarget``, or says in ``without_faults`` why it has none.
"""

from __future__ import annotations

from lockkit.testing.conformance.absent import AbsentTests
from lockkit.testing.conformance.asynchronous import AsyncTests
from lockkit.testing.conformance.base import Suite
from lockkit.testing.conformance.death import DeathTests
from lockkit.testing.conformance.effects import EffectTests
from lockkit.testing.conformance.exchanges import ExchangeTests
from lockkit.testing.conformance.exclusion import ExclusionTests
from lockkit.testing.conformance.leases import LeaseTests
from lockkit.testing.conformance.listing import ListingTests
from lockkit.testing.conformance.names import NameTests
from lockkit.testing.conformance.network import NetworkTests
from lockkit.testing.conformance.outages import OutageTests
from lockkit.testing.conformance.queueing import QueueTests
from lockkit.testing.conformance.readers import ReaderWriterTests
from lockkit.testing.conformance.reentry import ReentryTests
from lockkit.testing.conformance.semaphores import SemaphoreTests
from lockkit.testing.conformance.several import SeveralTests
from lockkit.testing.conformance.steps import StepTests
from lockkit.testing.conformance.traits import TraitTests
from lockkit.testing.conformance.waiting import WaitingTests

__all__ = ["StoreConformance"]


class StoreConformance(
    StepTests,
    EffectTests,
    LeaseTests,
    ListingTests,
    NameTests,
    ExclusionTests,
    WaitingTests,
    QueueTests,
    SemaphoreTests,
    ReaderWriterTests,
    ReentryTests,
    SeveralTests,
    DeathTests,
    NetworkTests,
    OutageTests,
    ExchangeTests,
    AsyncTests,
    TraitTests,
    AbsentTests,
    Suite,
):
    """The whole suite. Override ``store``; set ``schemes``, ``tested`` and perhaps ``reached``."""
