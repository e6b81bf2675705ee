"""The test kit itself: servers that are real, and a network that fails as ordered."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from lockkit.model.clock import now
from lockkit.testing._ports import free_port
from lockkit.testing.conformance.base import eventually
from lockkit.testing.proxy import FaultProxy
from lockkit.testing.servers import (
    MariaDBServer,
    MissingServer,
    PostgresServer,
    RedisServer,
    Server,
    ServerFailed,
    ValkeyServer,
)

MakeProxy = Callable[[Server], FaultProxy]
SECONDS = 5.0


def test_a_port_is_nobody_elses_before_its_server_has_started() -> None:
    port = free_port()
    program = f"""
        from lockkit.testing import _ports
        _ports.PORTS = [{port}] * 200
        _ports.free_port()
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "RuntimeError: no free port" in ran.stderr


def client_of(url: str) -> redis.Redis:
    """A client that neither retries nor introduces itself: a request is a request."""
    unnamed = ("driver_info",) if redis.VERSION >= (8,) else ("lib_name", "lib_version")
    return redis.Redis.from_url(
        url,
        retry=Retry(NoBackoff(), 0),
        socket_timeout=SECONDS,
        protocol=2,
        **dict.fromkeys(unnamed),
    )


@pytest.fixture
def through(
    redis_server: RedisServer, proxy: MakeProxy
) -> Iterator[tuple[FaultProxy, redis.Redis]]:
    redis_server.flush()
    faulty = proxy(redis_server)
    with client_of(f"redis://127.0.0.1:{faulty.port}") as client:
        client.ping()
        yield faulty, client


class TestRedis:
    def test_restart_without_persistence_is_empty(self) -> None:
        with RedisServer() as server:
            server.client().set("x", 1)
            server.restart()
            assert server.client().get("x") is None

    def test_persistence_survives_a_kill(self) -> None:
        with RedisServer(persist=True) as server:
            server.client().set("x", 1)
            server.restart(kill=True)
            assert server.client().get("x") == b"1"

    def test_every_way_in(self) -> None:
        users = {"shop": "on >secret ~shop:* &* +@all"}
        with RedisServer(users=users, password="sesame", tls=True) as server:
            for url in (server.url, server.unix_url, server.tls_url):
                with client_of(url) as client:
                    assert client.acl_whoami() == "default"
            with client_of(server.url_for("shop", "secret")) as client:
                assert client.set("shop:1", "x")
                with pytest.raises(redis.exceptions.NoPermissionError):
                    client.set("other", "x")

    def test_passwords_are_for_the_server_only(self) -> None:
        with RedisServer(password="sesame") as server:
            command = Path(f"/proc/{server.pid}/cmdline").read_bytes()
            assert b"sesame" not in command
            assert (server.directory / "redis.conf").stat().st_mode & 0o077 == 0

    def test_options(self) -> None:
        with RedisServer("maxmemory 10mb", "maxmemory-policy allkeys-lru") as server:
            assert server.client().config_get("maxmemory-policy") == {
                "maxmemory-policy": "allkeys-lru"
            }

    def test_paused_server_answers_after_it_resumes(self) -> None:
        with RedisServer() as server, client_of(server.url) as client:
            client.ping()
            server.pause()
            threading.Timer(0.05, server.resume).start()
            assert client.ping()

    def test_wrong_option_shows_the_log(self) -> None:
        with pytest.raises(ServerFailed, match="no-such-option"), RedisServer("no-such-option 1"):
            pass

    def test_nothing_is_left_after_close(self) -> None:
        with RedisServer() as server:
            pid, directory = server.pid, server.directory
        assert not directory.exists()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    def test_server_ends_with_its_starter(self) -> None:
        program = """
            import os, signal
            from lockkit.testing.servers import RedisServer
            server = RedisServer().start()
            print(server.pid, server.directory, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        """
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, check=False
        )
        pid, directory = done.stdout.decode().split()
        assert done.returncode == -signal.SIGKILL
        assert _ended(int(pid))
        assert Path(directory).name.startswith("lockkit-")


@pytest.mark.parametrize("stopped", [False, True])
def test_agents_end_with_their_starter(stopped: bool) -> None:
    """Also one that is stopped, and cannot see it."""
    program = f"""
        import os, signal
        from lockkit.testing.agent import Agent
        from lockkit.testing.targets import Target
        agent = Agent(Target("memory://"))
        agent.call("connect", api="sync")
        if {stopped}:
            agent.pause()
        print(agent.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert _ended(int(done.stdout))


def test_valkey_is_current(valkey_server: ValkeyServer) -> None:
    version = valkey_server.client().info("server")["valkey_version"]
    assert int(str(version).partition(".")[0]) >= 8


class TestPostgres:
    def test_databases_come_and_go(self, postgres_server: PostgresServer) -> None:
        url = postgres_server.create_database()
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
            connection.commit()
            postgres_server.drop_database(url)
        with pytest.raises(psycopg.OperationalError), psycopg.connect(url):
            pass

    def test_killed_backend_ends_the_others(self) -> None:
        with PostgresServer() as server:
            with psycopg.connect(server.url) as one, psycopg.connect(server.url) as other:
                server.kill_backend(one.info.backend_pid)
                with pytest.raises(psycopg.OperationalError):
                    other.execute("SELECT pg_sleep(10)")
            server.restart()
            assert server.execute("SELECT 1") == "1"

    def test_sql_errors_are_told(self, postgres_server: PostgresServer) -> None:
        with pytest.raises(ServerFailed, match="syntax error"):
            postgres_server.execute("SELEC")


def test_mariadb_databases_come_and_go(mariadb_server: MariaDBServer) -> None:
    url = mariadb_server.create_database()
    name = url.rpartition("/")[2]
    assert name in mariadb_server.execute("SHOW DATABASES").split()
    mariadb_server.drop_database(url)
    assert name not in mariadb_server.execute("SHOW DATABASES").split()


class TestProxy:
    def test_forwards_and_counts(self, through: tuple[FaultProxy, redis.Redis]) -> None:
        faulty, client = through
        before = faulty.requests
        client.set("x", "1")
        client.get("x")
        assert faulty.requests - before == 2
        assert faulty.connections == 1

    def test_dropped_reply_was_applied(
        self, through: tuple[FaultProxy, redis.Redis], redis_server: RedisServer
    ) -> None:
        faulty, client = through
        fault = faulty.drop_replies(matching=b"INCR")
        with pytest.raises(redis.exceptions.ConnectionError):
            client.incr("x")
        assert fault.happened.wait(SECONDS)
        assert redis_server.client().get("x") == b"1"
        assert client.incr("x") == 2, "only one reply was ordered to be dropped"

    def test_only_matching_replies_are_dropped(
        self, through: tuple[FaultProxy, redis.Redis]
    ) -> None:
        faulty, client = through
        fault = faulty.drop_replies(2, matching=b"INCR")
        client.set("x", "0")
        for _ in range(2):
            with pytest.raises(redis.exceptions.ConnectionError):
                client.incr("x")
        assert fault.happened.wait(SECONDS)
        assert client.get("x") == b"2"

    def test_held_request_arrives_after_its_client_has_gone(
        self, through: tuple[FaultProxy, redis.Redis], redis_server: RedisServer
    ) -> None:
        faulty, client = through
        fault = faulty.delay_requests(matching=b"INCR")
        impatient = threading.Thread(target=_ignore_errors, args=(client.incr, "x"))
        impatient.start()
        assert fault.arrived.wait(SECONDS)
        assert redis_server.client().get("x") is None
        client.close()
        client.connection_pool.disconnect()
        fault.release()
        assert fault.happened.wait(SECONDS)
        assert redis_server.client().get("x") == b"1"
        impatient.join(SECONDS)

    def test_cut_resets_open_connections_only(
        self, redis_server: RedisServer, proxy: MakeProxy
    ) -> None:
        faulty = proxy(redis_server)
        with _dialogue(faulty) as connection:
            faulty.cut()
            with pytest.raises(ConnectionResetError):
                connection.recv(1)
        with _dialogue(faulty):
            pass

    def test_refused(self, redis_server: RedisServer, proxy: MakeProxy) -> None:
        faulty = proxy(redis_server)
        with _dialogue(faulty) as connection:
            faulty.refuse()
            with pytest.raises(OSError), _dialogue(faulty):  # noqa: PT011 (reset or broken pipe)
                pass
            assert _ping(connection), "open connections stay"
        faulty.refuse(False)
        with _dialogue(faulty):
            pass

    def test_half_open_swallows_and_tells_nobody(
        self, redis_server: RedisServer, proxy: MakeProxy
    ) -> None:
        faulty = proxy(redis_server)
        with _dialogue(faulty) as connection:
            faulty.half_open()
            connection.settimeout(0.1)
            connection.sendall(b"PING\r\n")
            with pytest.raises(TimeoutError):
                connection.recv(1)
            eventually(lambda: any(link.swallowed for link in faulty._open_links()))
            connection.settimeout(SECONDS)
            faulty.half_open(False)
            with pytest.raises(ConnectionResetError):
                connection.recv(1)
        with _dialogue(faulty):
            pass

    def test_latency_both_ways(self, through: tuple[FaultProxy, redis.Redis]) -> None:
        faulty, client = through
        faulty.latency = 0.05
        fault = faulty.delay_requests(matching=b"PING")
        fault.release()
        started = now()
        client.ping()
        assert now() - started >= 2 * faulty.latency
        assert fault.happened.wait(SECONDS)

    def test_stop_frees_held_requests(self, redis_server: RedisServer) -> None:
        before = {*threading.enumerate()}
        with FaultProxy("127.0.0.1", redis_server.port) as faulty:
            fault = faulty.delay_requests()
            connection = socket.create_connection(("127.0.0.1", faulty.port))
            connection.sendall(b"PING\r\n")
            assert fault.arrived.wait(SECONDS)
        connection.close()

        def new() -> list[threading.Thread]:
            return [t for t in threading.enumerate() if t not in before]

        eventually(lambda: not [t for t in new() if t.name == "fault-proxy"])

    def test_may_be_started_again(self, redis_server: RedisServer) -> None:
        faulty = FaultProxy("127.0.0.1", redis_server.port)
        for _ in range(2):
            with faulty, _dialogue(faulty):
                pass

    def test_unix_target(self, redis_server: RedisServer) -> None:
        with FaultProxy(str(redis_server.socket_path)) as faulty, _dialogue(faulty):
            pass


def test_missing_server_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockkit.testing.servers.redis.find_program", lambda _: None)
    with pytest.raises(MissingServer, match="apt-get install --yes redis-server") as caught:
        RedisServer().start()
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def _dialogue(faulty: FaultProxy) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", faulty.port), timeout=SECONDS)
    try:
        assert _ping(connection)
    except BaseException:  # a test's timeout as well
        connection.close()
        raise
    return connection


def _ping(connection: socket.socket) -> bool:
    connection.sendall(b"PING\r\n")
    return connection.recv(100) == b"+PONG\r\n"


def _ignore_errors(function: Callable[[str], object], argument: str) -> None:
    with contextlib.suppress(OSError, redis.exceptions.RedisError, ValueError):
        function(argument)


def _ended(pid: int) -> bool:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], SECONDS)[0])
    finally:
        os.close(descriptor)
