"""Anything may stand where a vote or a tombstone was, in the nodes of Redlock.

In one node of three it changes nothing. In all of them nobody else gets what is held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis
from damaging import EXAMPLES, FREE, MUTEX, pieces, request
from five_nodes import five_nodes
from hypothesis import given, settings
from hypothesis import strategies as st
from steps import Steps

from lockkit.model.errors import LockError
from lockkit.model.settings import settings_from_url
from lockkit.model.types import Gone, Grant, Mode, Release
from lockkit.stores.registry import load_store
from lockkit.testing.conformance.base import eventually

HELD, OTHER = request(MUTEX, 1, Mode.TRY), request(MUTEX, 2, Mode.TRY)
BURIED = request(FREE, 3, Mode.TRY)
Damage = Callable[[redis.Redis], object]


class Store:
    """Three nodes in use: one name is held, and of another the token is buried."""

    def __init__(self, backend: Steps, nodes: list[redis.Redis]) -> None:
        self.backend = backend
        self.nodes = nodes
        eventually(self._is_held)
        backend.release(BURIED._replace(unsure=True))
        eventually(lambda: all(node.dbsize() == 2 for node in nodes))
        self.sound = [{key: node.dump(key) for key in node.scan_iter()} for node in nodes]
        self.values = {key: nodes[0].get(key) for key in self.sound[0]}

    def _is_held(self) -> bool:
        """By the votes of all: nobody waits for the last."""
        try:
            self.backend.acquire(HELD)
        except LockError:  # there are no connections yet
            return False
        return all(node.dbsize() == 1 for node in self.nodes)

    def put(self) -> None:
        self.backend.check()  # behind which nothing is under way
        for node, data in zip(self.nodes, self.sound, strict=True):
            node.flushall()
            for key, dump in data.items():
                node.restore(key, 600_000, dump)


@pytest.fixture
def store() -> Iterator[Store]:
    with five_nodes(count=3) as servers:
        backend = Steps(load_store(settings_from_url(servers.url(socket_timeout=30), ttl=600)))
        nodes = [server.client() for server in servers]
        yield Store(backend, nodes)
        for node in nodes:
            node.close()
        backend.close()


@st.composite
def damages(draw: st.DrawFn, store: Store) -> Damage:
    key = draw(st.sampled_from(sorted(store.values)))
    value = draw(pieces(store.values[key]))
    if draw(st.integers(0, 4)) == 0:
        make = draw(st.sampled_from(["lpush", "sadd"]))
        return lambda node: (node.delete(key), getattr(node, make)(key, value))
    return lambda node: node.set(key, value, keepttl=True)


def outcome(step: Callable[[], object]) -> object:
    try:
        return step()
    except LockError as error:
        return error


@settings(EXAMPLES, max_examples=30)
@given(data=st.data(), everywhere=st.booleans())
def test_whatever_stands_there(store: Store, data: st.DataObject, everywhere: bool) -> None:
    damage = data.draw(damages(store))
    steps = {
        "other": lambda: store.backend.acquire(OTHER),
        "again": lambda: store.backend.acquire(HELD),
        "extend": lambda: store.backend.extend([HELD._replace(number=7)])[0],
        "buried": lambda: store.backend.acquire(BURIED),
        "release": lambda: store.backend.release(HELD),
    }
    found = {}
    for name, step in steps.items():
        store.put()
        for node in store.nodes if everywhere else store.nodes[:1]:
            damage(node)
        found[name] = outcome(step)
    assert not isinstance(found["other"], Grant)
    if not everywhere:
        assert isinstance(found["again"], Grant)
        assert found["extend"].left > 500
        assert found["buried"] == Gone()
        assert found["release"] is Release.RELEASED
