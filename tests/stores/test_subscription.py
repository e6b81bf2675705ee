"""A subscription that cannot be renewed at once, or is closed while somebody waits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import NamedTuple

import pytest
from garbage import collected

from lockkit.model.clock import now
from lockkit.model.errors import AcquireTimeout, BackendUnavailable
from lockkit.stores.redis.aio_wire import AsyncRedisWire
from lockkit.stores.redis.wire import RedisWire
from lockkit.testing.blocking import AnyClient, Api, BlockingClient, connect
from lockkit.testing.conformance.base import eventually, queued
from lockkit.testing.proxy import FaultProxy
from lockkit.testing.servers import RedisServer

NAME = "stock:42"
WAITERS = 3
SECONDS = 2.0


class Scene(NamedTuple):
    """Some wait through a proxy for what ``near`` holds."""

    server: RedisServer
    proxy: FaultProxy
    near: AnyClient
    far: AnyClient
    threads: ThreadPoolExecutor
    is_blocking: bool
    asked: list[float]
    """When one of them asked the store."""

    def wait(self) -> list[Future[bool]]:
        """They have a connection each then, and one is left over: nobody will need another."""
        most = WAITERS + 1 if self.is_blocking else 1
        first = self.proxy.delay_requests(most, matching=b"EVALSHA")
        self.threads.submit(_visit, self.far, f"{NAME}:other")
        waiting = [self.threads.submit(_visit, self.far) for _ in range(WAITERS)]
        eventually(lambda: self.proxy.connections == most)
        first.release()
        queued(self.near, NAME, WAITERS)
        return waiting

    def kill(self) -> int:
        with self.server.client() as admin:
            return int(admin.client_kill_filter(_type="pubsub"))

    @property
    def subscriptions(self) -> int:
        with self.server.client() as admin:
            return len(admin.client_list(_type="pubsub"))


@pytest.fixture(params=["sync", "async"])
def scene(request: pytest.FixtureRequest, redis_server: RedisServer) -> Iterator[Scene]:
    api: Api = request.param
    redis_server.flush()
    with redis_server.client() as admin:
        admin.client_kill_filter(_type="pubsub")  # clients of other tests, which nobody has closed
    asked: list[float] = []

    def note(data: bytes) -> None:
        asked.extend([now()] * data.count(b"EVALSHA"))

    with (
        FaultProxy("127.0.0.1", redis_server.port, on_request=note) as proxy,
        ThreadPoolExecutor(WAITERS + 1) as threads,
        ExitStack() as stack,
    ):
        near = connect("sync", redis_server.url, ttl=30)
        stack.callback(_stop, near)
        url = f"redis://127.0.0.1:{proxy.port}/0"
        options = {"socket_timeout": 20.0}
        far = connect(api, url, ttl=30, acquire_timeout=60, options=options)
        stack.callback(_stop, far)
        yield Scene(redis_server, proxy, near, far, threads, api == "sync", asked)


def test_each_waiter_asks_once_there_is_another_subscription(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message may have come meanwhile. They would ask by themselves much later only."""
    monkeypatch.setattr("lockkit.engine.waiting.alive_for", lambda _: 600.0)
    with scene.near.lock(NAME, ttl=300).acquire():
        waiting = scene.wait()
        before = len(scene.asked)
        assert scene.kill() == 1
        eventually(lambda: len(scene.asked) >= before + WAITERS)
        assert scene.subscriptions == 1
    _all_granted(waiting)


def test_waiters_ask_seldom_while_no_subscription_can_be_had(scene: Scene) -> None:
    """The server answers, and takes no new connection: as many are open as it allows, or the
    password was changed. Who waits polls, but the server has its other work to do."""
    with scene.near.lock(NAME).acquire():
        waiting = scene.wait()
        scene.proxy.refuse()
        before = len(scene.asked)
        scene.kill()
        eventually(lambda: len(scene.asked) >= before + WAITERS)  # a message may have come
        _ask_seldom(scene)
        assert not any(future.done() for future in waiting)
        scene.proxy.refuse(False)
        eventually(lambda: scene.subscriptions == 1)
        _ask_seldom(scene)
    _all_granted(waiting)


def test_a_newcomer_keeps_its_timeout_while_no_subscription_can_be_had(scene: Scene) -> None:
    with scene.near.lock(NAME).acquire(), ThreadPoolExecutor(1) as threads:
        waiting = scene.wait()
        scene.proxy.refuse()
        before = len(scene.asked)
        scene.kill()
        eventually(lambda: len(scene.asked) >= before + WAITERS)
        newcomer = threads.submit(lambda: scene.far.lock(NAME, timeout=0.5).acquire())
        error = newcomer.exception(SECONDS * 5)
        assert isinstance(error, AcquireTimeout | BackendUnavailable)
        scene.proxy.refuse(False)
    _all_granted(waiting)


def test_waiters_ask_seldom_while_each_subscription_breaks_at_once(scene: Scene) -> None:
    with scene.near.lock(NAME).acquire():
        waiting = scene.wait()
        started, before, killed = now(), len(scene.asked), 0
        while now() - started < SECONDS:
            killed += scene.kill()
        elapsed = now() - started
        assert killed <= _tries(elapsed)
        assert len(scene.asked) - before <= WAITERS * 2 * _tries(elapsed)
    _all_granted(waiting)


def test_whoever_has_listened_in_vain_queues_all_the_same(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The subscription is lost again before they queue. Another one is made while they wait."""

    async def lost_at_once(*_: object) -> None:
        pass

    monkeypatch.setattr(RedisWire, "listen", lambda *_: None)
    monkeypatch.setattr(AsyncRedisWire, "listen", lost_at_once)
    with scene.near.lock(NAME).acquire():
        waiting = scene.wait()
        eventually(lambda: scene.subscriptions == 1)
        assert not any(future.done() for future in waiting)
    _all_granted(waiting)


def test_a_client_that_is_closed_while_somebody_waits_closes_its_subscription(
    scene: Scene,
) -> None:
    """And makes no new one; who waits asks again and again."""
    with scene.near.lock(NAME).acquire():
        waiting = scene.wait()
        scene.far.close()
        eventually(lambda: scene.subscriptions == 0)
        queued(scene.near, NAME, WAITERS)
        assert not any(future.done() for future in waiting)
    _all_granted(waiting)
    assert scene.subscriptions == 0
    scene.far.close()
    collected()  # warns of what is open


def _visit(client: AnyClient, name: str = NAME) -> bool:
    with client.lock(name).acquire() as lease:
        return not lease.lost


def _all_granted(waiting: list[Future[bool]]) -> None:
    assert [future.result() for future in waiting] == [True] * len(waiting)


def _ask_seldom(scene: Scene) -> None:
    """For some seconds. On a machine that stalls they ask less often still."""
    started, before = now(), len(scene.asked)
    time.sleep(SECONDS)
    count = len(scene.asked) - before
    assert count <= WAITERS * 2 * _tries(now() - started)


def _tries(seconds: float) -> float:
    """To subscribe, at most: a pause that doubles is soon at its longest, which is a second."""
    return 7 + seconds


def _stop(client: AnyClient) -> None:
    if isinstance(client, BlockingClient):
        client.stop()
    else:
        client.close()
