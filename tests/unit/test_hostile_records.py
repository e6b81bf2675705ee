"""What another writer of the store can put into a record, where it is told to people."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest

from lockkit.engine import holding
from lockkit.engine.effects import at_once
from lockkit.model.clock import now
from lockkit.model.errors import DamagedRecord, by
from lockkit.model.types import Granted, Owner, Renewal, Request
from lockkit.runtime.hold import Hold


def test_an_owner_forges_no_line_of_a_log() -> None:
    told = by(Owner("host\nERROR forged \x1b[2J", 1, "thread", "caf\u00e9\u202e"))
    assert told.isprintable()
    assert by(Owner("host", 1, "thread", "caf\u00e9")) == " by host:1 caf\u00e9"


class TwoServers:
    """The record ``a2`` cannot be read."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def server_of(self, name: str) -> str:
        return name[0]

    def renew(self, requests: Sequence[Request]) -> Any:
        self.asked += [each.name for each in requests]
        unreadable = Renewal(None, DamagedRecord("x"))
        return at_once([unreadable if each.name == "a2" else Renewal(30.0) for each in requests])

    def ended(self, *_: object) -> Any:
        return at_once(None)


def held(name: str) -> Hold:
    request = Request(name=name, token=name * 16, owner="o", ttl=30.0)
    return Hold(Granted(request, 1, now() + 30, now(), True))


def test_an_unreadable_record_stops_no_renewal_even_if_nobody_can_be_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_: object) -> bool:
        raise ZeroDivisionError

    monkeypatch.setattr(logging.getLogger("lockkit"), "filters", [fail])
    store: Any = TwoServers()
    for _ in holding.renew(store, [held(name) for name in ("a1", "a2", "b1", "b2")]):
        raise AssertionError
    assert sorted(store.asked) == ["a1", "a2", "b1", "b2"]
