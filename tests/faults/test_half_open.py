"""A subscription that has ended without the client's knowledge.

This happens when a firewall forgets a connection, or when an address moves to another server.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import pytest
import redis
from garbage import collected

import lockkit
from lockkit.model.clock import now
from lockkit.testing.blocking import AnyClient, Api, connect
from lockkit.testing.conformance.base import eventually, queued
from lockkit.testing.proxy import FaultProxy
from lockkit.testing.servers import RedisServer

NAME = "stock:42"
TURNS = 3
VISITORS, WAITERS = 5, 8
SOCKET_TIMEOUT = 3.0
PATIENCE = 12.0
"""Seconds for one turn: a starved waiter would have had dozens of turns."""


class Scene(NamedTuple):
    server: RedisServer
    proxy: FaultProxy
    near: AnyClient
    far: AnyClient
    """Through the proxy."""

    def lose_subscription(self) -> None:
        assert self.proxy.lose_store(matching=b"SUBSCRIBE") == 1
        eventually(lambda: self.subscriptions("far") == 0)

    def subscriptions(self, name: str) -> int:
        with self.server.client() as admin:
            return sum(c["name"] == name for c in admin.client_list(_type="pubsub"))


@pytest.fixture(params=["sync", "async"])
def scene(request: pytest.FixtureRequest, redis_server: RedisServer) -> Iterator[Scene]:
    api: Api = request.param
    redis_server.flush()
    with FaultProxy("127.0.0.1", redis_server.port) as proxy, ExitStack() as stack:
        near = connect("sync", redis_server.url, ttl=30)
        stack.callback(near.close)
        options = {"socket_timeout": SOCKET_TIMEOUT, "client_name": "far"}
        far = connect(api, f"redis://127.0.0.1:{proxy.port}/0", ttl=30, options=options)
        stack.callback(getattr(far, "stop", far.close))
        yield Scene(redis_server, proxy, near, far)


@contextmanager
def crowd(client: AnyClient, hold: float = 0.02) -> Iterator[None]:
    """The name is always held, and somebody always waits for it."""
    over = threading.Event()

    def visit() -> None:
        while not over.is_set():
            with client.lock(NAME, timeout=PATIENCE).acquire():
                over.wait(hold)

    with ThreadPoolExecutor(VISITORS) as threads:
        visitors = [threads.submit(visit) for _ in range(VISITORS)]
        try:
            eventually(lambda: client.inspect(NAME))
            yield
        finally:
            over.set()
        for visitor in visitors:
            visitor.result()


@pytest.fixture
def only_doubts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence alone makes nobody ask."""
    monkeypatch.setattr("lockkit.stores.redis.pulse.SILENCE", 600.0)


@pytest.mark.usefixtures("only_doubts")
def test_a_waiter_is_not_starved(scene: Scene) -> None:
    """Each message of its grant reaches nobody, so its place goes to the next. It is told so when
    it asks, doubts its subscription, and has another one soon."""
    with crowd(scene.near):
        scene.far.lock(NAME, timeout=PATIENCE).acquire().release()
        scene.lose_subscription()
        for _ in range(TURNS):
            scene.far.lock(NAME, timeout=PATIENCE).acquire().release()


@pytest.mark.usefixtures("only_doubts")
def test_a_waiter_that_cannot_subscribe_again_is_not_starved(scene: Scene) -> None:
    """The server takes no more connections. The waiter asks for its grant: no message tells it."""
    with crowd(scene.near, hold=0.4), scene.server.client() as admin:
        scene.far.lock(NAME, timeout=PATIENCE).acquire().release()
        scene.proxy.refuse()
        for client in admin.client_list(_type="pubsub"):
            if client["name"] == "far":
                admin.client_kill_filter(_id=client["id"])
        scene.far.lock(NAME, timeout=PATIENCE).acquire().release()


def test_a_silent_subscription_is_asked_whether_it_lives(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing makes the waiter doubt: nobody has handed it anything."""
    monkeypatch.setattr("lockkit.stores.redis.pulse.SILENCE", 0.2)
    with waiting_behind(scene) as granted:
        scene.lose_subscription()
        eventually(lambda: scene.subscriptions("far") == 1)
        assert not granted()


def test_a_silent_subscription_that_answers_is_kept(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockkit.stores.redis.pulse.SILENCE", 0.01)
    monkeypatch.setattr(
        "lockkit.engine.waiting.alive_for", lambda _: 0.1
    )  # it looks at it so often
    with waiting_behind(scene):
        before = asked(scene)
        made = scene.proxy.connections
        eventually(lambda: asked(scene) >= before + 5)
        assert scene.proxy.connections == made


def test_a_subscription_that_the_server_refuses_is_given_up(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The user may listen no more, and hears so when the subscription is asked whether it lives.
    The waiter asks for its grant instead."""
    monkeypatch.setattr("lockkit.stores.redis.pulse.SILENCE", 0.2)
    monkeypatch.setattr(
        "lockkit.engine.waiting.alive_for", lambda _: 0.5
    )  # it looks at it so often
    with scene.server.client() as admin, waiting_behind(scene) as granted:
        try:
            admin.execute_command("ACL", "SETUSER", "default", "-subscribe")
            eventually(lambda: scene.subscriptions("far") == 0)
        finally:
            admin.execute_command("ACL", "SETUSER", "default", "+@all")
        assert not granted()
    assert "Fatal error" not in caplog.text


def test_who_cannot_have_its_first_subscription_waits_without(scene: Scene) -> None:
    """The server takes no more connections. The one that asks works."""
    scene.far.lock("other").acquire().release()
    scene.proxy.refuse()
    with waiting_behind(scene) as granted:
        assert not granted()
    assert scene.subscriptions("far") == 0


def test_a_user_who_may_not_subscribe_tries_again_later(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A mistake in an ACL is put right: it polls until then, and the log says so once."""
    monkeypatch.setattr("lockkit.stores.redis.subscription.REFUSED_FOR", 0.1)
    with scene.server.client() as admin:
        try:
            admin.execute_command("ACL", "SETUSER", "default", "-subscribe")
            with waiting_behind(scene) as granted:
                before = refused(admin)
                eventually(lambda: refused(admin) >= before + 3)
                admin.execute_command("ACL", "SETUSER", "default", "+@all")
                eventually(lambda: scene.subscriptions("far") == 1)
                assert not granted()
        finally:
            admin.execute_command("ACL", "SETUSER", "default", "+@all")
    assert caplog.text.count("may not subscribe") == 1


def refused(admin: redis.Redis) -> int:
    """How often somebody tried to subscribe who may not."""
    return int(admin.info("commandstats").get("cmdstat_subscribe", {}).get("rejected_calls", 0))


def asked(scene: Scene) -> int:
    """How often somebody subscribed, or asked whether the subscription lives."""
    with scene.server.client() as admin:
        stats = admin.info("commandstats")
    return int(stats["cmdstat_subscribe"]["calls"])


@contextmanager
def waiting_behind(scene: Scene) -> Iterator[Callable[[], bool]]:
    """Somebody waits for what another holds; whether it was granted. Granted in the end."""
    with ThreadPoolExecutor(1) as threads:
        with scene.near.lock(NAME).acquire():
            waiting = threads.submit(scene.far.lock(NAME, timeout=PATIENCE).acquire)
            queued(scene.near, NAME, 1)
            yield waiting.done
        assert waiting.result().release()


def test_a_subscription_that_hangs_delays_all_who_want_it_once(scene: Scene) -> None:
    """One attempt is for all who wait for it: none of them makes another after it."""
    with scene.near.lock(NAME).acquire(), ThreadPoolExecutor(WAITERS) as threads:
        fault = scene.proxy.delay_requests(WAITERS, matching=b"SUBSCRIBE")
        started = now()
        lock = scene.far.lock(NAME, timeout=0.5)
        for waiting in [threads.submit(lock.acquire) for _ in range(WAITERS)]:
            with pytest.raises(lockkit.BackendError):
                waiting.result()
        assert now() - started < WAITERS * SOCKET_TIMEOUT / 2
        fault.release()


class Witness:
    """Of what a thread had when it gave up."""


def test_what_a_thread_had_that_could_not_subscribe_is_let_go(scene: Scene) -> None:
    """Its leases, too, which would be renewed for ever. The client keeps only why it failed."""
    seen: list[weakref.ref[Witness]] = []

    def wait() -> None:
        had = Witness()
        seen.append(weakref.ref(had))
        with pytest.raises(lockkit.BackendError):
            scene.far.lock(NAME, timeout=0.5).acquire()
        assert had

    with scene.near.lock(NAME).acquire():
        fault = scene.proxy.delay_requests(1, matching=b"SUBSCRIBE")
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join()
        fault.release()
    collected()
    assert [each() for each in seen] == [None]


@pytest.mark.usefixtures("only_doubts")
def test_what_is_told_gone_for_other_reasons_keeps_its_subscription(scene: Scene) -> None:
    """Its place was evicted: a doubt, and an answer."""
    with waiting_behind(scene):
        made, before = scene.proxy.connections, asked(scene)
        with scene.server.client() as admin:
            assert admin.delete(*[key for key in admin.scan_iter() if admin.ttl(key) > 0])
        eventually(lambda: asked(scene) > before)
        assert scene.proxy.connections == made
        assert scene.subscriptions("far") == 1


def wait_until_subscribed(client: AnyClient, is_so: Callable[[], bool]) -> None:
    """A wait that ends before it has listened leaves nothing, so it is repeated."""

    def waits_once() -> bool:
        with pytest.raises(lockkit.AcquireTimeout):
            client.lock(NAME).acquire(timeout=0.05)
        return is_so()

    eventually(waits_once)


def test_another_client_of_the_process_does_not_listen_for_it(scene: Scene) -> None:
    """Each has a channel of its own: a message that only the other one hears is heard by nobody."""
    with scene.server.client() as admin:
        others = admin.pubsub_channels()  # a client of another test may not have gone yet

        def heard() -> int:
            return len({*admin.pubsub_channels()} - {*others})

        with scene.near.lock(NAME).acquire():
            wait_until_subscribed(scene.near, lambda: heard() == 1)
            wait_until_subscribed(scene.far, lambda: heard() == 2)


@pytest.mark.usefixtures("only_doubts")
def test_nobody_waits_is_no_reason_to_reconnect(scene: Scene) -> None:
    """The next one who waits notices that the subscription is gone."""
    with scene.near.lock(NAME).acquire():
        wait_until_subscribed(scene.far, lambda: scene.subscriptions("far") == 1)
    scene.lose_subscription()
    with crowd(scene.near):
        scene.far.lock(NAME, timeout=PATIENCE).acquire().release()
