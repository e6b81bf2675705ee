"""What a trait promises by itself; and every declared trait has a test."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from lockkit.engine import holding
from lockkit.model.clock import now
from lockkit.stores.contract import (
    Capped,
    Durable,
    Fenced,
    HostLocal,
    Listed,
    ProcessLocal,
    Pushed,
    Reentrant,
    ServerClock,
    Sessioned,
    Shared,
    Waited,
    traits_of,
)
from lockkit.testing.agent import AgentFailed, Crew
from lockkit.testing.blocking import AnyClient, Api
from lockkit.testing.checkers import fence_of
from lockkit.testing.conformance.base import (
    QUICK,
    ROOMY,
    SOON,
    Connect,
    Spawn,
    Suite,
    at_least_once,
    eventually,
    held,
    needs,
    nothing_left,
)
from lockkit.testing.conformance.choice import PROCESSES, UNHARMED, Without, wanted_by
from lockkit.testing.faulty import FaultyExchange
from lockkit.testing.targets import ServerTarget, Target

LIMITS = {Capped, HostLocal, ProcessLocal}
"""These promise less than a store without them, so nothing more is tested."""

NEEDED = ((Listed, Fenced), (Shared, Waited), (Reentrant, Waited))
"""An operator names a lease by its fence. A holder that enters again passes those who wait, and
only the store knows the holders: a queue in front of it does not."""

DAY = 86_400
MANY_TIMES = 4


class TraitTests(Suite):
    @pytest.fixture(autouse=True)
    def _a_stall_is_no_fault(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A request that broke off is repeated, even if the machine was slow to notice."""
        monkeypatch.setattr(holding, "RETRY_WITHIN", SOON)

    def test_each_declared_trait_is_tested(self) -> None:
        tests = [n for n in dir(self) if n.startswith("test_") and getattr(self, n) is not None]
        tested = {trait for name in tests for trait in wanted_by(type(self), name)}
        assert traits_of(self.tested) - LIMITS <= tested

    def test_each_declared_trait_has_the_one_that_it_needs(self) -> None:
        declared = traits_of(self.tested)
        assert all(needed in declared for trait, needed in NEEDED if trait in declared)

    @needs(*UNHARMED)
    def test_its_server_is_made_to_fail(self) -> None:
        pytest.xfail(self.without_faults)

    @needs(Durable, PROCESSES)
    def test_leases_survive_a_restart_of_the_store(
        self, connect: Connect, store: Target, crew: Crew, api: Api, name: str
    ) -> None:
        """A process that starts afterwards finds them, and continues the fences."""
        client = connect()
        lease = client.lock(name).acquire()
        crew.dismiss()
        if isinstance(store, ServerTarget):
            store.server.kill()
            store.server.start()
        else:  # it is a file, which now nobody has open any more
            client.close()
        (agent,) = crew.take(1, api)
        with pytest.raises(AgentFailed, match="LockHeld"):
            agent.acquire("next", api=api, name=name, timeout=0)
        assert lease.release()
        fence = agent.acquire("next", api=api, name=name)
        assert fence > fence_of(lease) or not issubclass(self.tested, Fenced)
        assert agent.call("release", handle="next")
        nothing_left(client, name)

    @needs(ServerClock)
    @pytest.mark.parametrize("wrong", [-DAY, DAY], ids=["late", "early"])
    def test_the_clock_of_a_client_does_not_matter(
        self, client: AnyClient, other: AnyClient, name: str, wrong: int
    ) -> None:
        with pytest.MonkeyPatch.context() as clocks:
            clocks.setattr(time, "time", shifted(time.time, wrong))
            clocks.setattr(time, "time_ns", shifted(time.time_ns, wrong * 10**9))
            lease = client.lock(name).acquire()
            lease.extend()
        if isinstance(client.store, Listed):
            info = other.inspect(name)
            assert info is not None and info.left is not None
            assert 0 < info.left <= ROOMY
        assert other.lock(name).try_acquire() is None
        assert lease.release()

    @needs(Sessioned)
    def test_leases_end_with_their_connection(
        self, client: AnyClient, other: AnyClient, name: str
    ) -> None:
        """Long before they would expire."""
        lease = client.lock(name, ttl=ROOMY).acquire()
        client.close()
        eventually(lambda: not held(other, name))
        assert not lease.release()
        nothing_left(other, name)

    @needs(Pushed)
    def test_a_waiter_is_told_and_does_not_ask_again_and_again(
        self, faulty: AnyClient, other: AnyClient, fault: FaultyExchange, name: str, spawn: Spawn
    ) -> None:
        def told() -> bool:
            with fault:
                lease, asked = other.lock(name).acquire(), fault.asked
                waiting = spawn(faulty.lock(name, ttl=ROOMY).acquire)
                started = now()
                time.sleep(QUICK / 2)
                assert lease.release()
                waiting.result().release()
                seconds = now() - started
            return fault.asked - asked <= 4 + seconds  # the waiter also gives signs of life

        at_least_once(told)

    @needs(PROCESSES, Without(Pushed), Without(Sessioned))
    def test_a_waiter_that_nobody_tells_asks_again_and_again(
        self, faulty: AnyClient, other: AnyClient, fault: FaultyExchange, name: str, spawn: Spawn
    ) -> None:
        with fault:
            lease = other.lock(name).acquire()
            waiting = spawn(faulty.lock(name).acquire)
            eventually(lambda: fault.asked > MANY_TIMES)
            assert lease.release()
            waiting.result().release()


def shifted(clock: Callable[[], float], by: int) -> Callable[[], float]:
    return lambda: clock() + by
