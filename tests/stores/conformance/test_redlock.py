from __future__ import annotations

from collections.abc import Iterator

import pytest
from five_nodes import five_nodes
from over_a_wire import BY_TASKS, LOSES_SOCKETS, OverAWire, by_tls

from lockkit.stores.redlock import RedlockStore
from lockkit.testing.conformance import StoreConformance
from lockkit.testing.targets import Target

PATIENT = {"socket_timeout": 10.0}
"""For a machine that stalls: no test is about nodes that take so long to answer."""


NODES = "its five servers fail apart from one another, in tests/stores/test_redlock.py"


class TestRedlock(StoreConformance):
    """Five of Debian's Redis."""

    schemes = ("redlock",)
    without_faults = NODES
    tested = RedlockStore
    cycles = 400
    brief = 2.0  # a vote may take half of it
    by_tasks = BY_TASKS

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls) -> Iterator[Target]:
        with five_nodes() as nodes:
            yield Target(nodes.url(**PATIENT))


@LOSES_SOCKETS
class TestRedlockOverTLS(OverAWire):
    schemes = ("redlocks",)
    without_faults = NODES
    tested = RedlockStore

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls) -> Iterator[Target]:
        with by_tls(), five_nodes(tls=True, password="a-password") as nodes:
            yield Target(nodes.tls_url(**PATIENT))
