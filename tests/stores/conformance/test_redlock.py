from __future__ import annotations

from collections.abc import Iterator

import pytest
from five_nodes import five_nodes
from over_a_wire import BY_TASKS, OverAWire, no_authorities

from lockkit.stores.redlock import RedlockStore
from lockkit.testing.conformance import StoreConformance
from lockkit.testing.store import Store

PATIENT = {"options": {"socket_timeout": 10.0}}
"""For a machine that stalls: no test is about nodes that take so long to answer."""


class TestRedlock(StoreConformance):
    """Five of Debian's Redis. What happens when some of them fail: see test_redlock_faults."""

    schemes = ("redlock",)
    tested = RedlockStore
    cycles = 400
    by_tasks = BY_TASKS

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls) -> Iterator[Store]:
        with five_nodes() as nodes:
            yield Store(nodes.url(), options=PATIENT)


# CPython loses a socket that is reset or given up while TLS is being made, until it is collected.
@pytest.mark.filterwarnings(r"ignore:unclosed <(ssl\.SSLS|socket\.s)ocket:ResourceWarning")
class TestRedlockOverTLS(OverAWire):
    schemes = ("redlocks",)
    tested = RedlockStore

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls) -> Iterator[Store]:
        with no_authorities(), five_nodes(tls=True, password="a-password") as nodes:
            yield Store(nodes.tls_url(), options=PATIENT)
