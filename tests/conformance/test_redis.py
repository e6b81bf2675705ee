from __future__ import annotations

from collections.abc import Iterator

import pytest

from lockkit.testing.conformance import BackendConformance, Needs
from lockkit.testing.servers import RedisServer
from lockkit.testing.store import RedisStore

REDIS = Needs.PROCESSES | Needs.SERVER | Needs.PUSH | Needs.SCRIPTS


class TestRedis(BackendConformance):
    schemes = ("redis",)
    provides = REDIS
    cycles = 10_000

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls) -> Iterator[RedisStore]:
        with RedisServer() as server:
            yield RedisStore(server)
