"""A block ends while its store is away: LeaseLost if the lease was lost before, else a warning."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import lockkit
from lockkit.engine.effects import Step
from lockkit.leases.lease import BaseLease
from lockkit.model.errors import BackendUnavailable, LeaseLost
from lockkit.model.types import Release, Request
from lockkit.testing.blocking import AnyClient, Api, BlockingClient, connect
from lockkit.testing.conformance.base import eventually
from lockkit.testing.proxy import FaultProxy
from lockkit.testing.servers import RedisServer

SOON = 30.0
LONG, SHORT = 60.0, 0.3
"""TTLs that last for the whole test, and that do not. None is renewed."""

Client = Callable[..., AnyClient]


@pytest.fixture(params=["sync", "async"])
def api(request: pytest.FixtureRequest) -> Api:
    api: Api = request.param
    return api


@pytest.fixture
def network(redis_server: RedisServer, proxy: Callable[[RedisServer], FaultProxy]) -> FaultProxy:
    redis_server.flush()
    return proxy(redis_server)


@pytest.fixture
def client(api: Api, network: FaultProxy) -> Iterator[Client]:
    """Of this TTL."""
    with ExitStack() as stack:

        def client(ttl: float) -> AnyClient:
            found = connect(api, url_of(network), ttl=ttl, max_hold=0.0)
            stack.callback(found.stop if isinstance(found, BlockingClient) else found.close)
            return found

        yield client


def url_of(network: FaultProxy) -> str:
    return f"redis://127.0.0.1:{network.port}/0"


def go_away(network: FaultProxy) -> None:
    network.refuse()
    network.cut()


class Told(threading.Event):
    """Of the loss of a lease."""

    def __call__(self, _: object) -> None:
        self.set()


def lost(client: Client, network: FaultProxy, *names: str) -> Any:
    """Leases that were lost while the store was away."""
    told, locks = Told(), client(SHORT)
    if len(names) == 1:
        leases: Any = locks.lock(*names, on_lost=told).acquire()
    else:
        leases = locks.multi(*names, on_lost=told).acquire()
    go_away(network)
    assert told.wait(SOON)
    return leases


@pytest.mark.parametrize("names", ["a", "ab"])
def test_lost_before(client: Client, network: FaultProxy, names: str) -> None:
    said = "the lease on '[ab]' is lost: it was held for its MAX_HOLD"
    with pytest.raises(LeaseLost, match=said), lost(client, network, *names):
        pass


@pytest.mark.parametrize("names", ["a", "ab"])
def test_broken_before(client: Client, network: FaultProxy, names: str) -> None:
    locks = client(LONG)
    leases = locks.multi(*names).acquire()
    assert locks.break_("a", fence=leases["a"].fencing_token)
    with pytest.raises(LeaseLost):
        leases.extend()
    go_away(network)
    with pytest.raises(LeaseLost, match="'a' is lost: an operator released it"), leases:
        pass


@pytest.mark.parametrize("names", ["a", "ab"])
def test_lost_before_an_error_of_the_body(client: Client, network: FaultProxy, names: str) -> None:
    with pytest.raises(ValueError, match="of the body"), lost(client, network, *names):
        raise ValueError("of the body")


@pytest.mark.parametrize("names", ["a", "ab"])
def test_held_to_the_end(
    client: Client, network: FaultProxy, names: str, caplog: pytest.LogCaptureFixture
) -> None:
    with client(LONG).multi(*names).acquire():
        go_away(network)
    assert any(f"release of '{names[-1]}' not confirmed" in said for said in caplog.messages)


def test_lost_while_the_release_fails(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The body had the lock to its end."""
    locks = client(LONG)
    lease = locks.lock("a").acquire()

    def fails(_: Request) -> Step[Release]:
        getattr(lease, "_lease", lease)._hold.lose()  # a renewal that was under way has failed
        raise BackendUnavailable("it is away")

    for way in ("release", "returned"):  # the second is that of blocking clients
        monkeypatch.setattr(locks.store, way, fails)
    with lease:
        pass
    assert any("release of 'a' not confirmed" in said for said in caplog.messages)


def lose_replies_about(name: str, locks: AnyClient, monkeypatch: pytest.MonkeyPatch) -> None:
    release = locks.store.release

    def fails(request: Request) -> Step[Release]:
        if request.name == name:
            raise BackendUnavailable("it is away")
        return release(request)

    monkeypatch.setattr(locks.store, "release", fails)


def test_of_several_one_is_gone_and_another_cannot_be_told(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    locks = client(LONG)
    leases = locks.multi("a", "b").acquire()
    lose_replies_about("a", locks, monkeypatch)
    assert locks.break_("b", fence=leases["b"].fencing_token)
    with pytest.raises(LeaseLost, match="'b' is lost: an operator released it"), leases:
        pass
    assert any("release of 'a' not confirmed" in said for said in caplog.messages)


def test_of_several_one_is_late_and_another_cannot_be_told(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its store says that the late one, which was handed over, was ours to the end."""
    locks = client(LONG)
    leases = locks.multi("a", "b").acquire()
    is_late = property(lambda lease: lease.name == "a")
    monkeypatch.setattr(BaseLease, "_overdue", is_late)
    lose_replies_about("b", locks, monkeypatch)
    with leases:
        pass
    assert any("release of 'b' not confirmed" in said for said in caplog.messages)


def test_a_step_that_fails_names_its_lock(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    locks = client(LONG)

    def fails(_: object) -> Step[Any]:
        raise BackendUnavailable("it is away")

    with locks.rwlock("a").write().acquire() as lease, locks.multi("b", "c").acquire() as leases:
        for way, step, name in (
            ("extend", lease.extend, "a"),
            ("acquire", lease.downgrade, "a"),
            ("extend", leases.extend, "b"),
        ):
            with monkeypatch.context() as patch:
                patch.setattr(locks.store, way, fails)
                with pytest.raises(BackendUnavailable) as error:
                    step()
            assert error.value.name == name


def test_a_release_that_fails_names_its_lock(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks = client(LONG)

    def fails(request: Request) -> Step[Release]:
        raise BackendUnavailable("it is away")

    for lock, first in ((locks.lock("a"), "a"), (locks.multi("a", "b"), "b")):
        lease: Any = lock.acquire()
        with monkeypatch.context() as patch:
            for way in ("release", "returned"):
                patch.setattr(locks.store, way, fails)
            with pytest.raises(BackendUnavailable) as error:
                lease.release()
        assert error.value.name == first
        eventually(lambda: not [*locks.holders()])


async def test_a_locked_function(
    api: Api, network: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKKIT_URL", url_of(network))

    def work(lease: lockkit.Lease) -> str:
        go_away(network)
        eventually(lambda: lease.lost)
        return "done"

    async def twin(lease: Any) -> str:
        return await asyncio.to_thread(work, lease)

    locked = lockkit.locked("job", ttl=SHORT, lease_as="lease")
    with pytest.raises(LeaseLost):
        print(await locked(twin)() if api == "async" else locked(work)())
