from __future__ import annotations

from collections.abc import Iterator

import pytest
from over_a_wire import BY_TASKS

from lockkit.stores import zookeeper
from lockkit.testing.conformance import StoreConformance
from lockkit.testing.proxy import FaultProxy
from lockkit.testing.servers import ZooKeeperServer
from lockkit.testing.targets import ZooKeeperTarget

OPTIONS = {"options": {"request_timeout": 3.0, "connect_timeout": 5.0}}


class TestZooKeeper(StoreConformance):
    """One server: what three of them add is in tests/faults/test_zookeeper.py."""

    schemes = ("zookeeper",)
    tested = zookeeper.ZooKeeperStore
    reached = ZooKeeperTarget
    cycles = 300
    by_tasks = BY_TASKS

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls) -> Iterator[ZooKeeperTarget]:
        with ZooKeeperServer() as server, FaultProxy("127.0.0.1", server.port) as proxy:
            yield ZooKeeperTarget(server, proxy, options=OPTIONS)
