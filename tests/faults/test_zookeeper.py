"""An ensemble of three ZooKeeper servers: its leader dies, a session ends, the network parts."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

import pytest
from ensembles import Ensemble, Member
from kazoo.client import KazooClient

from lockkit.engine.effects import Step
from lockkit.model.clock import now
from lockkit.model.errors import BackendError, LeaseLost
from lockkit.model.types import LeaseState
from lockkit.stores.zookeeper.session import Session
from lockkit.testing.blocking import AnyClient, AnyLease, Api, BlockingClient, connect
from lockkit.testing.checkers import Belief, History
from lockkit.testing.conformance.base import at_least_once, eventually
from lockkit.testing.proxy import FaultProxy

TTL = 2.0
LONG = 30.0
SOON = 8.0
"""Seconds: much less than a LONG lease lasts."""

PATIENT = {"connect_timeout": 20.0}
TURNS = 2


@pytest.fixture(scope="module")
def ensemble(other_servers: None) -> Iterator[Ensemble]:
    with Ensemble() as ensemble:
        yield ensemble


@pytest.fixture(scope="module")
def linked(other_servers: None) -> Iterator[Ensemble]:
    with Ensemble(is_linked=True) as ensemble:
        yield ensemble


@pytest.fixture(params=["sync", "async"])
def api(request: pytest.FixtureRequest) -> Api:
    return request.param


class Clients:
    """Makes clients, and stops them after the test."""

    def __init__(self, api: Api, stack: ExitStack) -> None:
        self._api = api
        self._stack = stack

    def __call__(self, url: str, ttl: float = LONG, **options: float) -> AnyClient:
        options = {**PATIENT, **options}
        client = connect(self._api, url, ttl=ttl, acquire_timeout=4 * LONG, options=options)
        self._stack.callback(client.stop if isinstance(client, BlockingClient) else client.close)
        return client


@pytest.fixture
def clients(api: Api) -> Iterator[Clients]:
    with ExitStack() as stack:
        yield Clients(api, stack)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return request.node.name


def test_the_leader_is_killed(ensemble: Ensemble, clients: Clients, name: str) -> None:
    """What is held stays held, who waits comes next, and fences go on growing."""
    client, other = clients(ensemble.url), clients(ensemble.url)
    fence = 0
    with ThreadPoolExecutor(1) as threads:
        for _ in range(TURNS):
            lease = client.lock(name).acquire()
            assert lease.fencing_token > fence
            waiting = threads.submit(other.lock(name).acquire)
            eventually(partial(waits, client, name))
            with killed(ensemble.leader):
                eventually(partial(works, client, f"{name}:other"), 3 * LONG)
                lease.check()
                assert not waiting.done()
                assert lease.release()
                with waiting.result() as follower:
                    fence = follower.fencing_token
                    assert fence > lease.fencing_token


def test_counting_while_leaders_die(ensemble: Ensemble, clients: Clients, name: str) -> None:
    """Nobody believes to hold what another one holds, whatever they are told meanwhile."""
    history, over = History(), threading.Event()

    def work(client: AnyClient) -> None:
        lock = client.lock(name, timeout=10)
        while not over.is_set():
            try:
                lease = lock.acquire()
                belief = Belief(name, "thread", lease)
                over.wait(0.01)
                history.intervals.append(belief.end())
                lease.release()
            except (BackendError, TimeoutError):
                continue

    with ThreadPoolExecutor(4) as threads:
        working = [threads.submit(work, clients(ensemble.url, ttl=4.0)) for _ in range(4)]
        try:
            for _ in range(TURNS):
                done = len(history.intervals)
                eventually(lambda: len(history.intervals) > done + 4)  # noqa: B023
                with killed(ensemble.leader):
                    pass
        finally:
            over.set()
        for each in working:
            each.result()
    assert not [str(overlap) for overlap in history.overlaps()]
    assert not [str(pair) for pair in history.fences_out_of_order()]


def test_a_session_that_ends_takes_its_leases_with_it_at_once(
    ensemble: Ensemble, clients: Clients, name: str
) -> None:
    """The end is told: long before the deadline, and before the next renewal."""
    other = clients(ensemble.url)
    with FaultProxy("127.0.0.1", ensemble.members[0].port) as proxy:
        leases = [clients(url_of(proxy)).lock(f"{name}:{turn}").acquire() for turn in range(TURNS)]
        ended = now()
        end_sessions(ensemble, proxy)
        for lease in leases:
            eventually(partial(getattr, lease, "lost"))
            with pytest.raises(LeaseLost):
                lease.check()
            assert not lease.release()
            with other.lock(lease.name).acquire() as taken:
                assert taken.fencing_token > lease.fencing_token
        assert now() - ended < SOON


def test_a_connection_that_breaks_as_soon_as_it_is_made_is_made_again(
    ensemble: Ensemble, clients: Clients, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have broken when the one who waits for it wakes up."""
    wait, cuts = Session.opening, []

    def opening(self: Session, seconds: float) -> Step[None]:
        yield from wait(self, seconds)
        if self.is_open and len(cuts) < TURNS:
            cuts.append(proxy.cut())
            eventually(lambda: not self.is_open)

    monkeypatch.setattr(Session, "opening", opening)
    with FaultProxy("127.0.0.1", ensemble.members[0].port) as proxy:
        lease = clients(url_of(proxy)).lock(name).acquire()
        assert len(cuts) == TURNS
        assert lease.release()


def test_a_waiter_whose_session_ends_queues_anew(
    ensemble: Ensemble, clients: Clients, name: str
) -> None:
    holder = clients(ensemble.url)
    lease = holder.lock(name).acquire()
    with (
        FaultProxy("127.0.0.1", ensemble.members[0].port) as proxy,
        ThreadPoolExecutor(1) as threads,
    ):
        waiting = threads.submit(clients(url_of(proxy)).lock(name).acquire)
        eventually(partial(waits, holder, name))
        end_sessions(ensemble, proxy, lambda: eventually(lambda: not waits(holder, name)))
        eventually(lambda: waits(holder, name) or waiting.done())
        assert lease.release()
        assert waiting.result().release()


def test_a_broken_connection_makes_a_lease_unknown_at_once(
    ensemble: Ensemble, clients: Clients, name: str
) -> None:
    """And a new one makes it known again. No renewal is due for seconds."""
    server = ensemble.members[0]
    with FaultProxy("127.0.0.1", server.port) as proxy:
        client = clients(url_of(proxy), connect_timeout=1.0)
        eventually(partial(works, client, f"{name}:first"))

        def as_it_should() -> bool:
            lease, started = client.lock(name).acquire(), now()
            proxy.refuse()
            proxy.cut()
            eventually(lambda: lease.state is LeaseState.UNKNOWN)
            proxy.refuse(False)
            eventually(lambda: lease.state is LeaseState.HELD)
            took = now() - started
            return lease.release() and took < SOON / 4

        at_least_once(as_it_should)


def test_a_client_that_is_cut_off_gives_up_before_another_is_granted(
    ensemble: Ensemble, clients: Clients, name: str
) -> None:
    server = ensemble.members[1]
    with FaultProxy("127.0.0.1", server.port) as proxy:
        far = clients(url_of(proxy), ttl=TTL, connect_timeout=1.0)
        near = clients(ensemble.url, ttl=TTL)
        eventually(partial(works, far, f"{name}:first"))
        lease = far.lock(name).acquire()
        proxy.half_open()
        follow(near, name, lease)
        proxy.half_open(False)
        eventually(partial(works, far, f"{name}:again"))
        assert not lease.release()


@pytest.mark.parametrize("which", ["leader", "follower"])
def test_a_server_that_is_cut_off_with_its_clients(
    linked: Ensemble, clients: Clients, name: str, which: str
) -> None:
    """It goes on answering what it knows, for as long as its syncLimit. Nobody is deceived."""
    leader = linked.leader
    member = leader if which == "leader" else linked.others(leader)[0]
    far = clients(linked.url_of([member]), ttl=TTL, connect_timeout=1.0)
    near = clients(linked.url_of(linked.others(member)), ttl=TTL)
    eventually(partial(works, far, f"{name}:first"))
    lease = eventually(partial(renewed, far, name))
    linked.cut_off(member)
    try:
        if which == "leader":  # the others wait for its syncLimit before they elect another one
            eventually(lambda: lease.lost)
            assert "Mode: leader" in eventually(lambda: member.ask("srvr"))
            # If it led on after this, it might never commit what was confirmed to it in vain.
            eventually(lambda: "Mode: leader" not in (member.ask("srvr") or "Mode: leader"))
        else:
            follow(near, name, lease)
    finally:
        linked.cut_off(member, False)
        for each in linked.members:
            each.wait_until_serving()
    eventually(partial(works, far, f"{name}:again"), 3 * LONG)
    assert not lease.release()


@contextmanager
def killed(member: Member) -> Iterator[None]:
    member.kill()
    try:
        yield
    finally:
        member.start()
        member.wait_until_serving()


def follow(near: AnyClient, name: str, lease: AnyLease) -> None:
    """The next one is granted soon after the ttl, and the holder knew before."""
    started = now()
    with near.lock(name).acquire() as taken:
        assert lease.lost
        assert taken.fencing_token > lease.fencing_token
        assert now() - started < TTL + SOON
        with pytest.raises(LeaseLost):
            lease.check()


def renewed(client: AnyClient, name: str) -> AnyLease | None:
    """A lease that has been held for longer than its TTL; none, if the machine has stalled."""
    lease, started = client.lock(name).acquire(), now()
    eventually(lambda: lease.lost or now() - started > TTL)
    if not lease.lost:
        return lease
    with suppress(BackendError):
        lease.release()
    return None


def works(client: AnyClient, name: str) -> bool:
    try:
        return client.lock(name).acquire().release()
    except BackendError:
        return False


def waits(client: AnyClient, name: str) -> bool:
    info = client.inspect(name)
    return info is not None and info.waiters == 1


def url_of(proxy: FaultProxy) -> str:
    return f"zookeeper://127.0.0.1:{proxy.port}/lockkit"


def end_sessions(
    ensemble: Ensemble, proxy: FaultProxy, then: Callable[[], object] = lambda: None
) -> None:
    """Of the clients behind a proxy: while they cannot reach it, another one says that it is they,
    and leaves."""
    server = ensemble.members[0]
    kind = KazooClient  # by its type: lazy objects of Django have a __class__ that imports
    found = [each for each in gc.get_objects() if issubclass(type(each), kind)]
    behind = [each.client_id for each in found if each.hosts == [("127.0.0.1", proxy.port)]]
    assert behind
    proxy.refuse()
    proxy.cut()
    for session in behind:
        double = KazooClient(f"127.0.0.1:{server.port}", client_id=session)
        double.start()
        double.stop()
        double.close()
    then()
    proxy.refuse(False)
