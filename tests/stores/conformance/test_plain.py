"""Keys that other clients lock, too: here only lockkit does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from over_a_wire import BY_OTHERS_TASKS

from lockkit.stores.redis.plain import PlainStore
from lockkit.testing.conformance import StoreConformance
from lockkit.testing.servers import RedisServer
from lockkit.testing.targets import RedisTarget

PATIENT = {"options": {"socket_timeout": 10.0}}


class TestPlainKeys(StoreConformance):
    schemes = ("redis?protocol=plain",)
    tested = PlainStore
    reached = RedisTarget
    by_tasks = BY_OTHERS_TASKS

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls) -> Iterator[RedisTarget]:
        with RedisServer() as server:
            yield RedisTarget(server, f"{server.url}?protocol=plain", options=PATIENT)
