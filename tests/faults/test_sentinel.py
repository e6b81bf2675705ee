"""redis+sentinel://: real fail-overs. What the master had not passed on is lost with it, and said;
everything else goes on, and fencing tokens go on growing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Self

import pytest
import redis
from redis import sentinel
from redis_family import CALM, HOST, SERVICE, SOON, Member, SentinelGroup, SentinelServer, until
from rushing import Rush

import lockkit
from lockkit.model.clock import now
from lockkit.testing.blocking import AnyClient, Api, connect
from lockkit.testing.servers import RedisServer

TTL = 4.0
PATIENT = {"socket_timeout": 10.0}


@pytest.fixture
def group() -> Iterator[SentinelGroup]:
    with SentinelGroup() as group:
        yield group


@pytest.fixture(params=["sync", "async"])
def client(request: pytest.FixtureRequest, group: SentinelGroup) -> Iterator[AnyClient]:
    api: Api = request.param
    client = connect(api, group.url, ttl=60.0)
    yield client
    client.close()


@pytest.fixture
def other(group: SentinelGroup) -> Iterator[lockkit.LockClient]:
    with lockkit.connect(group.url, ttl=60.0) as other:
        yield other


def at_last(work: Callable[[], Any]) -> Any:
    """What it brings, as soon as the new master is there."""
    deadline = now() + SOON
    while True:
        try:
            return work()
        except lockkit.BackendError:
            assert now() < deadline, "the new master is not used"
            threading.Event().wait(0.05)


def fails_over(group: SentinelGroup) -> bool:
    """By the will of an operator, once the Sentinel has looked at the replica."""
    try:
        with group.sentinels[0].client() as admin:
            return bool(admin.execute_command("SENTINEL", "FAILOVER", SERVICE))
    except redis.ResponseError:
        return False


def is_promoted(group: SentinelGroup) -> bool:
    """The replica. The Sentinels begin again if they have given up: a busy machine takes long."""
    return is_master(group.replica) or (fails_over(group) and is_master(group.replica))


def is_master(server: RedisServer) -> bool:
    """Sentinels end all connections to a server that they promote or demote."""
    try:
        with server.client() as admin:
            return bool(admin.role()[0] == b"master")
    except redis.ConnectionError:
        return False


def knows_the_new_one(group: SentinelGroup) -> bool:
    """Each Sentinel. The first of them is asked to make it the master: again, if they have given
    up. Asked just after it has done so, it begins to make the former one the master again."""
    states = [group.state(one) for one in group.sentinels]
    known = [state["port"] == group.replica.port for state in states]
    if not known[0]:
        fails_over(group)
    return all(known) and "failover_in_progress" not in states[0]["flags"]


def lag(server: RedisServer) -> None:
    """It hears of nothing more."""
    with server.client() as admin:
        admin.config_set("masterauth", "that-nobody-knows")
        admin.execute_command("CLIENT KILL TYPE master")


def test_the_master_is_killed(
    group: SentinelGroup, client: AnyClient, other: lockkit.LockClient
) -> None:
    """What was passed on is held as before, what was not is lost and said; and a server that comes
    back as if it were the master is not asked."""
    kept = client.lock("kept").acquire()
    with group.master.client() as admin:
        admin.set("mark", 1)  # WAIT is for what this connection has written, and before it
        assert admin.wait(1, 10_000) == 1
    lag(group.replica)
    lost = client.lock("lost").acquire()
    group.fail_over_after(500)
    group.master.kill()

    kept_again = at_last(lambda: other.inspect("kept"))
    assert kept_again is not None and kept_again.fence == kept.fencing_token
    at_last(kept.extend)
    assert other.lock("kept").try_acquire() is None
    taken = at_last(other.lock("lost").acquire)
    assert taken.fencing_token > lost.fencing_token
    with pytest.raises(lockkit.LeaseLost):
        lost.extend()
    assert lost.release() is False

    new = group.replica.port
    until(lambda: {group.state(one)["port"] for one in group.sentinels} == {new}, "all know it")
    group.demotes_nobody()
    group.fail_over_after(CALM)
    group.master.start()
    assert is_master(group.master)
    with lockkit.connect(group.url) as newcomer:
        assert newcomer.lock("kept").try_acquire() is None
        assert newcomer.lock("lost").try_acquire() is None
    assert kept.release() and taken.release()


@pytest.mark.parametrize("query", ["", "?protocol=plain"])
def test_a_fail_over_while_many_lock(group: SentinelGroup, query: str) -> None:
    """An operator asks for it. It may cost errors, and a lease whose release was not passed on its
    TTL; where all was passed on, no second holder."""
    patient = {"wait_replicas": 1, "socket_timeout": 10.0}
    clients = [lockkit.connect(group.url + query, ttl=TTL, options=patient) for _ in range(4)]
    with Rush(clients, "stock:42") as rush:
        rush.goes_on()
        until(lambda: is_promoted(group), "the replica is the master")
        rush.goes_on()
    for client in clients:
        client.close()


def test_a_demoted_master_grants_nothing(group: SentinelGroup, client: AnyClient) -> None:
    """Its Sentinels do not know yet: neither it nor the server that took its place is used."""
    group.demotes_nobody()
    with group.replica.client() as promoted, group.master.client() as demoted:

        def has_listened() -> bool:
            with pytest.raises(lockkit.AcquireTimeout):
                client.lock("warm-up").acquire(timeout=0.2)
            return bool(demoted.pubsub_channels("lockkit:*"))

        with client.lock("warm-up").acquire():
            until(has_listened, "it listens at the master")
        before = demoted.keys("{lockkit:*}:b")
        until(lambda: promoted.keys("{lockkit:*}:b") == before, "the replica has it")
        promoted.execute_command("REPLICAOF", "NO", "ONE")
        demoted.execute_command("REPLICAOF", "127.0.0.1", group.replica.port)
        with pytest.raises(lockkit.BackendError):
            client.lock("stock:42").acquire()
        until(lambda: not demoted.pubsub_channels("lockkit:*"), "nobody listens there")
        with (
            lockkit.connect(group.url) as newcomer,
            pytest.raises(
                lockkit.BackendUnavailable, match="Sentinels name a server that is not the master"
            ),
        ):
            newcomer.inspect("warm-up")
        assert promoted.keys("{lockkit:*}:b") == before
        assert demoted.keys("{lockkit:*}:b") in ([], before)


def test_a_master_that_is_cut_off_is_left(group: SentinelGroup, client: AnyClient) -> None:
    """Nobody can tell it of the new one. It refuses to write without a replica."""
    group.demotes_nobody()
    client.lock("warm-up").acquire().release()
    with group.master.client() as cut_off:
        cut_off.config_set("min-replicas-to-write", 1)
        until(lambda: knows_the_new_one(group), "all of them know the new master")
        until(
            lambda: not cut_off.info("replication")["connected_slaves"], "it has lost its replica"
        )
    with pytest.raises(lockkit.BackendUnavailable, match="NOREPLICAS"):
        client.lock("stock:42").acquire()
    with client.lock("stock:42").acquire(), group.replica.client() as promoted:
        assert promoted.keys("{lockkit:*}:b")


def test_a_waiter_is_told_or_granted(
    group: SentinelGroup, client: AnyClient, other: lockkit.LockClient
) -> None:
    """Its place was passed on: it is granted by the new master. If it asked while there was none,
    it has an error instead, and leaves nothing."""
    lease = other.lock("stock:42").acquire()

    def wait() -> bool:
        try:
            with client.lock("stock:42", ttl=60, timeout=SOON).acquire() as taken:
                return taken.fencing_token > lease.fencing_token
        except lockkit.BackendError:
            return True

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(wait)
        until(lambda: (info := other.inspect("stock:42")) and info.waiters, "it waits")
        with group.master.client() as admin:
            admin.set("mark", 1)  # WAIT is for what this connection has written, and before it
            assert admin.wait(1, 10_000) == 1
        group.fail_over_after(500)
        group.master.kill()
        with suppress(lockkit.BackendError):  # it is told later
            lease.release()
        assert waiting.result()
    until(lambda: at_last(lambda: other.inspect("stock:42")) is None, "nothing is left")


def test_a_sentinel_that_is_behind_is_outvoted(group: SentinelGroup) -> None:
    """It is asked first, and still names a server that was the master, and is one again."""
    until(lambda: knows_the_new_one(group), "all of them know the new master")
    with RedisServer() as former, Behind(former.port) as behind:
        url = group.url.replace("://", f"://{HOST}:{behind.port},")
        with lockkit.connect(url) as client, client.lock("stock:42"):
            with group.replica.client() as admin:
                assert admin.keys("*:b"), "the new master has it"
            with former.client() as admin:
                assert not admin.keys("*")
        assert behind.asked


class Behind:
    """Answers each question as a Sentinel does that has not heard of a fail-over yet."""

    def __init__(self, port: int) -> None:
        words = ["ip", HOST, "port", str(port), "flags", "master", "config-epoch", "0"]
        bulk = "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
        self._answer = f"*{len(words)}\r\n{bulk}".encode()
        self.asked = 0

    def __enter__(self) -> Self:
        self._listener = socket.create_server((HOST, 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with client:
                    while data := client.recv(4096):
                        is_question = b"MASTER" in data
                        self.asked += is_question
                        client.sendall(self._answer if is_question else b"+OK\r\n")


def test_an_isolated_master_stops_granting(client: AnyClient, group: SentinelGroup) -> None:
    """With min-replicas-to-write it has to hear of a replica; without, it grants on its own."""
    lag(group.replica)
    client.lock("stock:41").acquire().release()
    (danger,) = client.perform(client.store.health())
    assert danger.code == "isolation"
    with group.master.client() as admin:
        admin.config_set("min-replicas-to-write", 1)
        admin.config_set("min-replicas-max-lag", 1)
    assert client.perform(client.store.health()) == []
    with pytest.raises(lockkit.BackendUnavailable, match="too few replicas"):
        client.lock("stock:42").acquire()


@pytest.mark.parametrize("query", ["", "?protocol=plain"])
def test_a_user_who_may_not_ask_for_the_role_is_told_so(
    client: AnyClient, group: SentinelGroup, query: str
) -> None:
    """Its connections do not check that they lead to the master."""
    api: Api = "sync" if isinstance(client, lockkit.LockClient) else "async"
    login = {"username": "shop", "password": "secret"}
    with group.master.client() as admin:
        for rules, codes in (("-role", ["isolation", "role"]), ("+role", ["isolation"])):
            all_but = ("on", ">secret", "~*", "&*", "+@all", rules)
            admin.execute_command("ACL", "SETUSER", "shop", *all_but)
            allowed = connect(api, group.url + query, ttl=60.0, options=login)
            assert allowed.lock("stock:42").acquire().release()
            assert [each.code for each in allowed.perform(allowed.store.health())] == codes
            allowed.close()


def test_a_client_of_theirs_is_handed_over(group: SentinelGroup, other: lockkit.LockClient) -> None:
    """It goes on in the new master as well. One for replicas is refused."""
    addresses = [(HOST, sentinel.port) for sentinel in group.sentinels]
    given = sentinel.Sentinel(addresses, socket_timeout=5.0)
    master = given.master_for(SERVICE, socket_timeout=5.0)
    with lockkit.connect(client=master, ttl=60.0) as client:
        first = client.lock("stock:42").acquire()
        assert other.lock("stock:42").try_acquire() is None
        assert first.release()
        (danger,) = client.perform(client.store.health())
        assert danger.code == "isolation"
        group.fail_over_after(500)
        group.master.kill()
        second = at_last(client.lock("stock:42").acquire)
        assert second.fencing_token > first.fencing_token
        assert second.release()
    replicas = given.slave_for(SERVICE)
    with pytest.raises(lockkit.ConfigurationError, match="master_for"):
        lockkit.connect(client=replicas)
    for each in (master, replicas, *given.sentinels):
        each.connection_pool.disconnect()


def test_a_url_of_one_server_that_leads_to_a_sentinel(group: SentinelGroup) -> None:
    address = group.url.partition("://")[2].partition(",")[0]
    with (
        lockkit.connect(f"redis://{address}/0") as client,
        pytest.raises(lockkit.BackendError, match=r"is it a Sentinel\?.*redis\+sentinel://"),
    ):
        client.lock("stock:42").acquire()


def test_sentinels_that_watch_no_such_service(group: SentinelGroup, client: AnyClient) -> None:
    api: Api = "sync" if isinstance(client, lockkit.LockClient) else "async"
    stranger = connect(api, group.url.replace(f"/{SERVICE}", "/pub"))
    with pytest.raises(lockkit.BackendUnavailable, match="'pub': they watch no such service"):
        stranger.lock("stock:42").acquire()
    stranger.close()


@pytest.mark.parametrize("api", ["sync", "async"])
@pytest.mark.parametrize(
    ("login", "said"),
    [
        ({}, r"wants a password: OPTIONS\['sentinel'\] = {'password': …}"),
        ({"password": "of-servers"}, r"refuses .* the password in OPTIONS\['sentinel'\]"),
    ],
)
def test_a_password_that_only_the_sentinels_want(
    api: Api, login: dict[str, str], said: str
) -> None:
    """That of the servers, in the URL or in OPTIONS, is not for them."""
    with Member(like=None) as master, SentinelServer(master, password="secret") as asked:
        url = f"redis+sentinel://{asked.address}/{SERVICE}"
        client = connect(api, url, options={"sentinel": {**PATIENT, **login}})
        with pytest.raises(lockkit.BackendUnavailable, match=f"{asked.address}: .*{said}"):
            client.lock("stock:42").acquire()
        client.close()


@pytest.mark.parametrize("api", ["sync", "async"])
def test_a_url_of_sentinels_that_leads_to_a_server(api: Api, redis_server: RedisServer) -> None:
    url = redis_server.url.replace("redis://", "redis+sentinel://").replace("/0", f"/{SERVICE}")
    client = connect(api, url, options={"sentinel": PATIENT})
    with pytest.raises(lockkit.BackendUnavailable, match=r"not a Sentinel: .*, usually 26379$"):
        client.lock("stock:42").acquire()
    client.close()
