"""Odd names: a name that one user writes never touches the lock of another."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest

from lockkit.model.errors import InvalidName
from lockkit.stores.contract import Listed
from lockkit.testing.blocking import AnyClient
from lockkit.testing.conformance.base import held

ODD = (
    "a", "A", "a ", " a", "a  ", "é", "e\u0301", "ß", "ss", "İ", "i", "ﬁ", "fi",
    "a*", "a?", "[a]", "a[b-c]", "*", "{a}", "{a}b", "a{", "}", "{}", "%", "%25", "a%3Ab", "a:b",
    "a/b", "/../a", "..", "a\\", "a'", 'a"', "a;--", "$1", "a\u202e", "a\u200b", "\U0001f512",
    "\u00a0", "0", "1e0", "1", "-1", "null", "x" * 255, "x" * 254, "é" * 127, "𐀀", "\uffff",
)  # fmt: skip

REFUSED = ("", "\0", "a\0", "\n", "a\r\nb", "\x1b[31m", "\x7f", "\x85", "\u2028", "\ud800",
           "x" * 256, "é" * 128, "x" * 10_000)  # fmt: skip


class NameTests:
    @pytest.mark.filterwarnings("ignore:a lock's name is taken as it is:RuntimeWarning")
    def test_odd_names_are_all_different(
        self, client: AnyClient, other: AnyClient, name: str
    ) -> None:
        """All held at once, each seen by exactly its own name."""
        leases = []
        for odd in ODD:
            lease = client.lock(odd, ttl=30).try_acquire()
            assert lease is not None, f"{odd!a} is locked by another name"
            leases.append(lease)
        if isinstance(other.store, Listed):
            seen = [info.name for info in other.holders()]
            assert sorted(n for n in seen if n in ODD) == sorted(ODD)
            for odd, lease in zip(ODD, leases, strict=True):
                info = other.inspect(odd)
                assert info is not None
                assert (info.name, info.fence) == (odd, lease.fencing_token)
        for odd, lease in zip(ODD, leases, strict=True):
            assert lease.release(), f"{odd!a} was released by another name"
            assert not held(other, odd)

    def test_an_odd_name_waits_and_is_handed_over(self, client: AnyClient, name: str) -> None:
        odd = f"{name}{{*}}%'é\U0001f512"
        with client.lock(odd).acquire():
            assert client.lock(odd).try_acquire() is None
        with client.lock(odd).acquire():
            assert held(client, odd)

    def test_what_is_no_name_is_refused(self, client: AnyClient) -> None:
        asked: list[Callable[[str], Any]] = [client.lock]
        if isinstance(client.store, Listed):
            asked += [client.inspect, partial(client.break_, fence=1)]
        for ask, refused in product(asked, REFUSED):
            with pytest.raises(InvalidName):
                ask(refused)
