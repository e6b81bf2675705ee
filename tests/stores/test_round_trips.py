"""How often a table is asked: one statement takes what is free, and one frees what nobody awaits.
And which of them the server must have written down before it answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import NoneType

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lock_tables import make_table, table_at
from steps import Steps

import lockkit
from lockkit.engine import grant
from lockkit.model.types import Kind, Mode, Request
from lockkit.stores.sql import codec, guard
from lockkit.stores.sql import store as sql_store
from lockkit.stores.sql.rules import stored
from lockkit.testing.conformance.base import at_least_once, eventually, queued
from lockkit.testing.conformance.steps import claim, granted
from lockkit.testing.proxy import FaultProxy
from lockkit.testing.servers import PostgresServer

TIMES = 5
SERVERS = {"postgres_url": 0, "mariadb_url": 1}
"""A statement that found the row changed says on PostgreSQL what stands there; elsewhere it is
asked for by one statement more."""


@pytest.fixture(params=SERVERS)
def more(request: pytest.FixtureRequest) -> int:
    return SERVERS[request.param]


@pytest.fixture
def url(more: int, request: pytest.FixtureRequest) -> str:
    (name,) = (name for name, number in SERVERS.items() if number == more)
    url = str(request.getfixturevalue(name))
    make_table(url)
    return url


@pytest.fixture
def meter(url: str) -> Iterator[FaultProxy]:
    with FaultProxy("127.0.0.1", int(url.rpartition(":")[2].partition("/")[0])) as meter:
        yield meter


@pytest.fixture
def other(url: str) -> Iterator[lockkit.LockClient]:
    with lockkit.connect(url, ttl=60) as other:
        yield other


@pytest.fixture
def client(url: str, meter: FaultProxy, other: lockkit.LockClient) -> Iterator[lockkit.LockClient]:
    """Each of its statements was used before: PostgreSQL prepares it then."""
    far = url.replace(f":{meter.target[1]}/", f":{meter.port}/")
    with lockkit.connect(far, ttl=60) as client:
        hand_over(client, other, "warm-up")
        with client.lock("warm-up") as lease:
            lease.extend()
            assert other.lock("warm-up").try_acquire() is None
        yield client


def requests(meter: FaultProxy, work: Callable[[], object]) -> int:
    """What the server is sent by this work."""
    before = meter.requests
    work()
    return meter.requests - before


def hand_over(
    client: lockkit.LockClient,
    other: lockkit.LockClient,
    name: str,
    release: Callable[[lockkit.Lease], object] = lockkit.Lease.release,
) -> None:
    lease = client.lock(name).acquire()
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(other.lock(name).acquire)
        queued(other, name, 1)
        release(lease)
        assert waiting.result(20).release()


def test_a_pair_is_two_statements(client: lockkit.LockClient, meter: FaultProxy) -> None:
    lock = client.lock("warm-up")
    assert requests(meter, lambda: [lock.acquire().release() for _ in range(TIMES)]) == 2 * TIMES


def test_shared_claims_as_well(client: lockkit.LockClient, meter: FaultProxy) -> None:
    lock = client.semaphore("warm-up", 3)
    assert requests(meter, lambda: [lock.acquire().release() for _ in range(TIMES)]) == 2 * TIMES


def test_a_new_name_is_one_statement_more(
    client: lockkit.LockClient, meter: FaultProxy, more: int
) -> None:
    client.lock("new").acquire().release()  # the statement that makes a row
    asked = requests(
        meter, lambda: [client.lock(f"n{n}").acquire().release() for n in range(TIMES)]
    )
    assert asked == (3 + more) * TIMES


def test_a_name_that_is_held(
    client: lockkit.LockClient, other: lockkit.LockClient, meter: FaultProxy, more: int
) -> None:
    with other.lock("warm-up"):
        assert requests(meter, lambda: client.lock("warm-up").try_acquire()) == 1 + more


def test_a_release_that_hands_over(
    client: lockkit.LockClient, other: lockkit.LockClient, meter: FaultProxy, more: int
) -> None:
    asked = []
    release = lambda lease: asked.append(requests(meter, lease.release))  # noqa: E731
    hand_over(client, other, "warm-up", release)
    assert asked == [2 + more]


def test_a_release_of_what_was_waited_for(
    client: lockkit.LockClient, other: lockkit.LockClient, meter: FaultProxy
) -> None:
    """The row is read at once: a taker has never left what stands there."""

    def is_read_at_once() -> bool:
        lease = other.lock("warm-up").acquire()
        with ThreadPoolExecutor() as threads:
            waiting = threads.submit(client.lock("warm-up").acquire)
            queued(other, "warm-up", 1)
            lease.release()
            handed = waiting.result(20)
        return requests(meter, handed.release) == 2

    at_least_once(is_read_at_once)  # the first time, PostgreSQL prepares a statement


def test_a_lease_that_was_extended(
    client: lockkit.LockClient, meter: FaultProxy, more: int
) -> None:
    lease = client.lock("warm-up").acquire()
    assert requests(meter, lease.extend) == 2
    assert requests(meter, lease.release) == 2 + more


# Messages are grants


@pytest.fixture
def pushed(postgres_url: str) -> str:
    make_table(postgres_url)
    return postgres_url


@pytest.fixture
def _late_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the first notification: who gives it up polls for a minute."""
    monkeypatch.setattr("lockkit.stores.sql.inbox.PROOF_SECONDS", 15.0)


@pytest.mark.usefixtures("_late_proof")
def test_whoever_is_told_of_its_grant_does_not_ask(pushed: str) -> None:
    port = int(pushed.rpartition(":")[2].partition("/")[0])
    with FaultProxy("127.0.0.1", port) as meter, lockkit.connect(pushed, ttl=60) as other:
        far = pushed.replace(f":{port}/", f":{meter.port}/")
        with lockkit.connect(far, ttl=60) as client:

            def is_silent() -> bool:
                lease = other.lock("a").acquire()
                with ThreadPoolExecutor() as threads:
                    waiting = threads.submit(client.lock("a").acquire)
                    queued(other, "a", 1)
                    eventually(lambda: client.store._inbox.is_open)  # type: ignore[attr-defined]
                    before = meter.requests
                    lease.release()
                    taken = waiting.result(20)
                    asked = meter.requests - before
                assert taken.fencing_token > lease.fencing_token
                held = other.inspect("a")
                assert held is not None and held.fence == taken.fencing_token
                left = taken.remaining()
                taken.extend()
                assert taken.remaining() > 30
                assert taken.release()
                return asked == 0 and left < 4  # what its last sign of life left it

            at_least_once(is_silent)  # a refresh may come in between


@pytest.mark.usefixtures("_late_proof")
def test_a_message_for_another_enqueueing_is_no_grant(pushed: str) -> None:
    """Late, or somebody else's: the table is asked, and says that it is held."""
    with (
        lockkit.connect(pushed, ttl=60) as client,
        lockkit.connect(pushed, ttl=60) as other,
        psycopg.connect(pushed, autocommit=True) as admin,
        other.lock("a").acquire() as lease,
        ThreadPoolExecutor() as threads,
    ):
        waiting = threads.submit(client.lock("a").acquire)
        queued(other, "a", 1)
        inbox = client.store._inbox  # type: ignore[attr-defined]
        eventually(lambda: inbox.is_open)
        (token,) = inbox._claims
        for said in (f"{token} 1 7 {2**52}", token, f"{token} ", "nonsense"):
            admin.execute("SELECT pg_notify(%s, %s)", (inbox.channel, said))
        with pytest.raises(TimeoutError):
            waiting.result(0.5)
        assert lease.release()
        assert waiting.result(20).release()


# What is durable


@pytest.fixture(scope="module")
def replicated() -> Iterator[PostgresServer]:
    """A server that can be told to confirm no commit before a standby has it, and has none."""
    with PostgresServer() as server:
        yield server


def commits(server: PostgresServer) -> bool:
    """Whether a COMMIT ends without a standby."""
    with closing(psycopg.connect(server.url, autocommit=True)) as connection:
        pid, pgconn = connection.info.backend_pid, connection.pgconn
        pgconn.send_query(b"SELECT pg_logical_emit_message(true, '', '')")
        while pgconn.is_busy():
            waits_for = f"SELECT wait_event FROM pg_stat_activity WHERE pid = {pid}"
            if server.execute(waits_for) == "SyncRep":
                connection.cancel()
                return False
            pgconn.consume_input()
    return True


@pytest.fixture
def waits_for_standby(replicated: PostgresServer) -> Iterator[Callable[[bool], None]]:
    def set_it(waits: bool) -> None:
        replicated.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{'nobody' * waits}'")
        replicated.execute("SELECT pg_reload_conf()")
        eventually(lambda: replicated.execute("SHOW synchronous_standby_names") == "nobody" * waits)
        eventually(lambda: commits(replicated) != waits)  # once PostgreSQL's checkpointer hears

    yield set_it
    set_it(False)


def test_only_a_release_that_nobody_awaits_is_committed_later(
    replicated: PostgresServer,
    waits_for_standby: Callable[[bool], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waiter = Request("awaited", "w" * 32, 600.0, "", Mode.ENQUEUE)
    with table_at(replicated) as url, lockkit.connect(url, ttl=60) as client:
        steps = Steps(client.store)
        free, held, awaited = (client.lock(name).acquire() for name in ("free", "held", "awaited"))
        assert steps.acquire(waiter).ticket
        waits_for_standby(True)
        assert free.release()
        monkeypatch.setattr(guard, "STEP_SECONDS", 0.5)
        for durable in (client.lock("free").try_acquire, held.extend, awaited.release):
            with pytest.raises(lockkit.OutcomeUnknown):
                durable()
        with pytest.raises(lockkit.OutcomeUnknown):
            steps.withdraw(waiter._replace(token="v" * 32))
        monkeypatch.undo()
        waits_for_standby(False)
        assert held.release()
        assert client.lock("awaited").acquire(timeout=20).release()


def test_a_row_that_somebody_has_locked_keeps_no_other_from_being_renewed(
    lock_table_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lockkit.connect(lock_table_url, ttl=60) as client:
        requests = [claim(name, ttl=60.0) for name in ("a", "b", "c")]
        for request in requests:
            granted(client, request)
        monkeypatch.setattr(guard, "STEP_SECONDS", 1.0)
        with closing(psycopg.connect(lock_table_url)) as other:
            other.execute("SELECT 1 FROM lockkit_lock WHERE name = 'b' FOR UPDATE")
            renewals = client.perform(client.store.extend([r._replace(number=1) for r in requests]))
        errors = [renewal.error for renewal in renewals]
        assert [type(error) for error in errors] == [NoneType, lockkit.OutcomeUnknown, NoneType]
        assert all(renewal.left for renewal in renewals[::2])


@pytest.mark.parametrize(
    ("before", "locked", "at_first"), [("", "g", "abcdef"), ("", "bd", "ac"), ("g", "bd", "ac")]
)
def test_rows_that_somebody_has_locked_take_nothing_from_the_others(
    lock_table_url: str,
    monkeypatch: pytest.MonkeyPatch,
    before: str,
    locked: str,
    at_first: str,
) -> None:
    """Not what was extended before them; nor, the next time, what stands behind them. ``before``:
    had been locked for a moment."""
    monkeypatch.setattr(sql_store, "READ_AT_ONCE", 3)  # the last is alone in what is read at once
    with lockkit.connect(lock_table_url, ttl=60) as client:
        requests = [claim(name, ttl=60.0) for name in "abcdefg"]
        for request in requests:
            granted(client, request)
        monkeypatch.setattr(guard, "STEP_SECONDS", 1.0)

        def extended(number: int, locked: str) -> str:
            """The names that were."""
            asked = [request._replace(number=number) for request in requests]
            with closing(psycopg.connect(lock_table_url)) as other:
                other.execute(
                    "SELECT 1 FROM lockkit_lock WHERE name = ANY(%s) FOR UPDATE", ([*locked],)
                )
                renewals = client.perform(client.store.extend(asked))
            return "".join(r.name for r, one in zip(asked, renewals, strict=True) if one.left)

        extended(1, before)
        rest = re.sub(f"[{locked}]", "", "abcdefg")
        assert [extended(number, locked) for number in (2, 3)] == [at_first, rest]


# What is known without a look


@given(
    owner=st.text(max_size=20),
    max_hold=st.none() | st.floats(1, 900),
    ttl=st.floats(0.1, 900),
    claim=st.sampled_from(
        [
            {},
            {"kind": Kind.SEMAPHORE, "permits": 3, "shared": True},
            {"kind": Kind.RW, "shared": False, "entrant": "me"},
        ]
    ),
    now=st.integers(10**15, 2 * 10**15),
)
def test_a_statement_writes_what_the_rule_would(
    owner: str, max_hold: float | None, ttl: float, claim: dict[str, object], now: int
) -> None:
    request = Request("n", "t" * 32, ttl, owner, Mode.TRY, max_hold=max_hold, **claim)  # type: ignore[arg-type]
    state = grant.State(now - 1)
    mine = stored(request)
    grant.acquire(state, mine, now)
    assert codec.encode(state) == codec.taken(request)
    assert codec.decode(codec.taken(request), now) == state
    grant.extend(state, mine, now + 1)
    assert codec.encode(state) != codec.taken(request)
