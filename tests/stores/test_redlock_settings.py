"""What the URL and the options of Redlock say, and what it says of itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from five_nodes import Nodes, five_nodes

import lockkit
from lockkit import ConfigurationError, UnsupportedCapability, aio
from lockkit.model.clock import now
from lockkit.model.errors import BackendError, BackendUnavailable
from lockkit.testing.blocking import AnyClient, Api, BlockingClient, connect
from lockkit.testing.conformance.base import eventually

THREE = "redlock://h1,h2,h3"


@pytest.fixture(scope="module")
def guarded() -> Iterator[Nodes]:
    """A user that may do no more than docs/redlock.md says."""
    users = {"shop": "on >secret ~shop:* +eval +get +set +del +pttl +info +ping"}
    with five_nodes(users=users, password="for-all", tls=True) as nodes:
        yield nodes


@pytest.mark.parametrize(
    ("location", "told"),
    [
        ("redlock://h1", "names 1 nodes; Redlock needs at least 3"),
        ("redlock://h1,h2", "names 2 nodes"),
        ("redlock://h1,h2,h1", "names a node twice"),
        ("redlock://h1,h2,H1:6379", "names a node twice"),
        ("redlock://h1,,h3", "does not name its nodes"),
        ("redlock://h1,h2,h3:port", "does not name its nodes"),
        ("redlock://h1,h2,secret@h3", "at least 3|does not name its nodes"),
        ("redlock://a:secret@h1,a:secret@h2,a:secret@h3", "does not name its nodes"),
        ("redlock://h1,h2,h3/zero", "number of a database"),
        (f"{THREE}?socket_timout=1", "not a Redis URL; that of one server looks like"),
        (f"{THREE}?socket_timeout=0", "socket_timeout"),
        (f"{THREE}?restart_delay=soon", "restart_delay .* must be seconds"),
        (f"{THREE}?restart_delay=-1", "restart_delay"),
        (f"{THREE}?restart_delay=1&restart_delay=2", "'restart_delay' more than once"),
    ],
)
@pytest.mark.parametrize("module", [lockkit, aio])
def test_a_malformed_url_is_a_configuration_error(module: Any, location: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told) as caught:
        module.connect(location)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"restart_dely": 1}, "'restart_dely'"),
        ({"restart_delay": "60"}, "restart_delay .* is '60'"),
        ({"restart_delay": None}, "restart_delay"),
        ({"restart_delay": True}, "restart_delay"),
        ({"socket_timeout": -1}, "socket_timeout"),
        ({"ssl_ca_certs": "/ca.pem"}, "redlocks://"),
        ({"password": b"secret"}, "password.*of type bytes"),
    ],
)
def test_a_wrong_option_is_a_configuration_error(options: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told) as caught:
        lockkit.connect(THREE, options=options)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "good",
    [
        "redlock://h1,h2,h3",
        "redlock://h1:1,h1:2,h1:3/",
        "redlock://user:p%40ss@h1,h2,h3,h4/15",
        "redlock://[::1]:7001,[::1]:7002,[::1]:7003/0?socket_timeout=0.1",
        "redlocks://h1,h2,h3?ssl_ca_certs=/ca.pem&restart_delay=5",
    ],
)
def test_a_good_url(good: str) -> None:
    lockkit.connect(good).close()


def test_no_secret_is_shown(guarded: Nodes) -> None:
    client = lockkit.connect(f"redlock://shop:canary@{guarded.hosts()}/0?socket_timeout=60")
    with pytest.raises(lockkit.BackendUnavailable, match="password") as caught:
        client.lock("a").acquire()
    shown = f"{client!r} {client.settings!r} {client.store!r} {caught.value!r} {caught.value}"
    assert "canary" not in shown
    client.close()


@pytest.mark.parametrize("api", ["sync", "async"])
def test_the_permissions_of_the_docs_are_enough(guarded: Nodes, api: Api) -> None:
    """Also over TLS, and with a function that is asked for the password."""
    url = guarded.tls_url(restart_delay=4, socket_timeout=60).replace("://:for-all@", "://shop@")
    options = {"password": lambda: "secret"}
    client = connect(api, url, key_prefix="shop:", ttl=4.0, options=options)
    eventually(lambda: votes(client))
    lease = client.lock("a").acquire()
    lease.extend()
    assert client.lock("a").try_acquire() is None
    assert lease.release() is True
    client.perform(client.store.check())
    client.stop() if isinstance(client, BlockingClient) else client.close()


def votes(client: AnyClient) -> bool:
    """Whether the nodes have been up for long enough."""
    try:
        return client.lock("a").acquire().release()
    except BackendError as error:
        return "it was started lately and votes in" not in str(error)


@pytest.mark.parametrize("api", ["sync", "async"])
def test_the_certificate_of_a_node_is_verified(guarded: Nodes, api: Api) -> None:
    url = guarded.tls_url().partition("?")[0] + "?restart_delay=0&socket_timeout=60"
    client = connect(api, url, ttl=120.0)
    with pytest.raises(BackendUnavailable, match="5 of 5 nodes do not vote"):
        client.lock("a").acquire()
    client.stop() if isinstance(client, BlockingClient) else client.close()


def test_what_it_cannot_do_is_refused(guarded: Nodes) -> None:
    with lockkit.connect(guarded.url()) as client:
        with client.lock("a") as lease, pytest.raises(UnsupportedCapability):
            _ = lease.fencing_token
        with pytest.raises(UnsupportedCapability):
            client.semaphore("b", 3).acquire()
        with pytest.raises(UnsupportedCapability):
            client.rwlock("c").read().acquire()
        with pytest.raises(UnsupportedCapability):
            next(iter(client.holders()))


def test_a_ttl_is_at_most_the_restart_delay(guarded: Nodes) -> None:
    """A node that forgot a longer one would vote again too early."""
    with lockkit.connect(guarded.url(restart_delay=4), ttl=3) as client:
        eventually(lambda: votes(client))
        with pytest.raises(ConfigurationError, match="at most restart_delay, which is 4"):
            client.lock("a", ttl=5).acquire()
        with client.lock("a") as lease:
            with pytest.raises(ConfigurationError, match="restart_delay"):
                lease.extend(5)
            deadline = now() + lease.remaining()
            eventually(lambda: now() + lease.remaining() > deadline + 0.1)  # it is still renewed


def test_one_server_that_is_named_twice_is_found(guarded: Nodes) -> None:
    """By two addresses, so nobody can see it in the URL."""
    first, *others = [node.port for node in guarded]
    hosts = ",".join([f"localhost:{first}", *(f"127.0.0.1:{port}" for port in (first, *others))])
    with lockkit.connect(f"redlock://:for-all@{hosts}?socket_timeout=60") as client:
        (danger,) = client.perform(client.store.health())
    assert "are one server, which has two votes" in danger.text
    assert "for-all" not in danger.text


def test_a_node_that_may_forget_is_a_danger_without_a_restart_delay(guarded: Nodes) -> None:
    """Unless each has written a vote to its disk before it answers."""
    with lockkit.connect(guarded.url(restart_delay=0)) as client:
        dangers = client.perform(client.store.health())
        assert [danger.code for danger in dangers] == ["persistence"] * 5
        assert dangers[0].text.startswith(f"127.0.0.1:{guarded[0].port}: restart_delay is 0")
        try:
            _append(guarded, "yes", "everysec")
            assert len(client.perform(client.store.health())) == 5
            _append(guarded, "yes", "always")
            assert client.perform(client.store.health()) == []
            url = guarded.url(restart_delay=0).replace("://:for-all@", "://shop:secret@")
            with lockkit.connect(url) as other:
                unknown = other.perform(other.store.health())
            assert [danger.code for danger in unknown] == ["persistence"] * 5
            assert "may not ask it" in unknown[0].text
        finally:
            _append(guarded, "no", "everysec")


def _append(nodes: Nodes, appends: str, syncs: str) -> None:
    for node in nodes:
        with node.client() as admin:
            admin.config_set("appendfsync", syncs)
            admin.config_set("appendonly", appends)


def test_dangers_of_the_nodes(guarded: Nodes) -> None:
    with lockkit.connect(guarded.url(restart_delay=60)) as client:
        assert client.perform(client.store.health()) == []
        with guarded[0].client() as admin:
            admin.config_set("maxmemory-policy", "allkeys-lru")
        guarded[1].pause()
        dangers = client.perform(client.store.health())
        guarded[1].resume()
        with guarded[0].client() as admin:
            admin.config_set("maxmemory-policy", "noeviction")
    assert [danger.code for danger in dangers] == ["eviction", "node"]
    assert dangers[0].text.startswith(f"127.0.0.1:{guarded[0].port}: the Redis server evicts")
    assert f"127.0.0.1:{guarded[1].port} does not vote: no answer in time" in dangers[1].text


def test_a_check_needs_most_of_the_nodes(guarded: Nodes) -> None:
    with lockkit.connect(guarded.url()) as client:
        client.perform(client.store.check())
        for node in guarded[:3]:
            node.pause()
        with pytest.raises(BackendError, match="3 of 5"):
            client.perform(client.store.check())
        for node in guarded[:3]:
            node.resume()
