"""Several names at once: all or none, in whatever order they are named."""

from __future__ import annotations

import pytest

from lockkit.model.errors import AcquireTimeout, LeaseLost, LockHeld
from lockkit.stores.contract import Fenced, Listed
from lockkit.testing.blocking import AnyClient
from lockkit.testing.conformance.base import (
    ROOMY,
    Spawn,
    held,
    lasts,
    needs,
    nothing_left,
    queued,
)

TURNS = 10


class SeveralTests:
    def test_all_are_held_and_all_are_given_back(
        self, client: AnyClient, other: AnyClient, name: str
    ) -> None:
        names = several(name)
        with client.multi(*names, names[0], label="all").acquire() as leases:
            assert leases.names == tuple(sorted(names))
            assert all(held(other, each) for each in names)
            assert leases[names[1]].name == names[1]
            leases.extend(2 * ROOMY)
            assert lasts(client, leases.remaining(), 2 * ROOMY)
        assert leases.released and leases.lost
        assert leases.release() is False
        for each in names:
            nothing_left(other, each)

    def test_one_that_is_held_leaves_none(
        self, client: AnyClient, other: AnyClient, name: str
    ) -> None:
        names = several(name)
        with other.lock(names[1]).acquire():
            assert client.multi(*names).try_acquire() is None
            with pytest.raises(LockHeld) as refused:
                client.multi(*names, timeout=0).acquire()
            assert refused.value.name == names[1]
            with pytest.raises(AcquireTimeout) as late:
                client.multi(*names).acquire(0.05)
            assert late.value.waited >= 0.05
            if isinstance(other.store, Listed):
                queued(other, names[1], 0)
            nothing_left(other, names[0])
            nothing_left(other, names[2])
        leases = client.multi(*names).try_acquire()
        assert leases is not None and leases.release()

    def test_opposite_orders_do_not_deadlock(
        self, client: AnyClient, other: AnyClient, name: str, spawn: Spawn
    ) -> None:
        names = several(name)[:2]

        def work(client: AnyClient, names: list[str]) -> int:
            for _ in range(TURNS):
                with client.multi(*names).acquire():
                    pass
            return TURNS

        turns = [spawn(work, client, names), spawn(work, other, names[::-1])]
        assert [turn.result() for turn in turns] == [TURNS, TURNS]
        for each in names:
            nothing_left(client, each)

    @needs(Listed, Fenced)
    def test_of_several_one_that_is_lost_is_all_lost(
        self, client: AnyClient, other: AnyClient, name: str
    ) -> None:
        names = several(name)
        leases = client.multi(*names).acquire()
        assert other.break_(names[0], fence=leases[names[0]].fencing_token)
        with pytest.raises(LeaseLost) as lost:
            leases.extend()
        assert lost.value.name == names[0]
        with pytest.raises(LeaseLost) as lost:
            leases.check()
        assert leases.lost
        with pytest.raises(LeaseLost) as lost:
            leases.__exit__(None, None, None)
        assert lost.value.name == names[0]
        for each in names:
            nothing_left(other, each)


def several(name: str) -> list[str]:
    return [f"{name}:{each}" for each in ("b", "a", "c")]
