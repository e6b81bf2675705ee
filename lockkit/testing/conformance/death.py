"""Processes that die, stop, are interrupted or fork while they hold or wait."""

from __future__ import annotations

import itertools
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from lockkit.engine.times import alive_for
from lockkit.model.clock import now
from lockkit.stores.contract import Fenced, Listed, Queued
from lockkit.testing.agent import Agent, AgentFailed
from lockkit.testing.blocking import AnyClient, AnyLease, Api
from lockkit.testing.checkers import FencedRegister, fence_of
from lockkit.testing.conformance.base import (
    INJECTIONS,
    PROCESSES,
    SLACK,
    TTL,
    Agents,
    Spawn,
    at_least_once,
    eventually,
    held,
    needs,
    nothing_left,
    queued,
    waits,
)
from lockkit.testing.conformance.queueing import take


@needs(PROCESSES)
class DeathTests:
    """Each fault happens in several processes, on as many names, at once."""

    brief: ClassVar[float]

    def test_a_killed_holder_is_followed_when_its_lease_expires(
        self, client: AnyClient, agents: Agents, api: Api, name: str, spawn: Spawn
    ) -> None:
        crew, names = agents(INJECTIONS), names_for(name)
        fences = hold(crew, names, api, self.brief)
        waiting = follow(client, names, spawn)
        for agent in crew:
            agent.kill()
        died = now()
        for fence, future in zip(fences, waiting, strict=True):
            lease, granted = future.result()
            assert granted - died < self.brief + SLACK
            assert fence_of(lease) > fence or not isinstance(client.store, Fenced)
            assert lease.release()

    @needs(Queued, Listed, Fenced)
    def test_killed_waiters_do_not_stall_the_others(
        self, client: AnyClient, agents: Agents, api: Api, name: str, spawn: Spawn
    ) -> None:
        crew, names = agents(INJECTIONS), names_for(name)
        leases = [client.lock(n, ttl=30).acquire() for n in names]
        send_to_wait(crew, names, api)
        for each in names:
            queued(client, each, 1)
        waiting = [spawn(take, client, n) for n in names]
        for each in names:
            queued(client, each, 2)
        for agent in crew:
            agent.kill()
        released = now()
        for lease in leases:
            assert lease.release()
        for future in waiting:
            lease, granted = future.result()
            assert granted - released < alive_for(TTL) + SLACK
            assert lease.release()

    @needs(Queued, Listed, Fenced)
    def test_a_holder_stopped_past_its_ttl_knows_at_its_first_look(  # noqa: PLR0917 - fixtures
        self,
        client: AnyClient,
        agents: Agents,
        api: Api,
        name: str,
        spawn: Spawn,
        tmp_path: Path,
    ) -> None:
        """It cannot know while it is stopped. The fence must refuse what it writes afterwards."""
        crew, names = agents(INJECTIONS), names_for(name)
        fences = hold(crew, names, api)
        waiting = follow(client, names, spawn)
        for agent in crew:
            agent.pause()
        for index, agent in enumerate(crew):
            lease = waiting[index].result()[0]
            assert lease.fencing_token > fences[index]
            register = FencedRegister(tmp_path / str(index))
            assert register.write(lease.fencing_token, "second")
            agent.resume()
            assert agent.call("lost", handle=names[index]) is True
            with pytest.raises(AgentFailed, match="LeaseLost"):
                agent.call("check", handle=names[index])
            stale = agent.call("write", handle=names[index], path=str(register.path))
            assert stale is False
            assert register.writes() == [(lease.fencing_token, "second")]
            assert agent.call("release", handle=names[index]) is False
            lease.check()
            assert lease.release()

    @needs(Queued, Listed, Fenced)
    def test_a_grant_that_came_while_a_waiter_was_stopped_is_stale(
        self, client: AnyClient, agents: Agents, api: Api, name: str, spawn: Spawn
    ) -> None:
        """The message is still in its socket, but the grant has expired: another has the name."""
        crew, tries = agents(INJECTIONS), itertools.count()

        def all_come_back() -> bool:
            names = names_for(f"{name}:{next(tries)}")
            stopped, holders = passed_by(client, crew, names, api, spawn)
            for each, future in zip(names, stopped, strict=True):
                eventually(partial(waits, client, each, future))  # it joins again
            told = [future for future in stopped if future.done()]
            for holder in holders:
                holder.check()
                assert holder.release()
            for agent, each, future, holder in zip(crew, names, stopped, holders, strict=True):
                if future not in told:
                    assert future.result()["fence"] > holder.fencing_token
                    agent.call("release", handle=each)
            return not any(map(was_told, told))

        at_least_once(all_come_back)

    @needs(Queued, Listed, Fenced)
    def test_an_interrupted_waiter_leaves_nothing(
        self, client: AnyClient, agents: Agents, api: Api, name: str
    ) -> None:
        """SIGINT raises KeyboardInterrupt from acquire, and the waiter leaves the queue."""
        crew, names = agents(INJECTIONS), names_for(name)
        leases = [client.lock(n, ttl=30).acquire() for n in names]
        orders = [
            agent.send("interruptible", api=api, name=n)
            for agent, n in zip(crew, names, strict=True)
        ]
        for agent, each, future in zip(crew, names, orders, strict=True):
            queued(client, each, 1)
            eventually(partial(interrupted, agent, future))
            with pytest.raises(AgentFailed, match="KeyboardInterrupt"):
                future.result()
            queued(client, each, 0)
        for lease, each in zip(leases, names, strict=True):
            assert lease.release()
            nothing_left(client, each)

    def test_a_forked_child_owns_nothing_of_its_parents(
        self, client: AnyClient, agents: Agents, api: Api, name: str
    ) -> None:
        agent = agents(1)[0]
        agent.acquire("parent's", api=api, name=name)
        for _ in range(INJECTIONS):
            child = agent.call("fork", handle="parent's", api=api)
            assert child.pop("released", False) is False
            assert child == {"lost": True, "remaining": 0.0, "taken": False, "own": True}
            assert agent.call("lost", handle="parent's") is False
            assert held(client, name)
        assert agent.call("release", handle="parent's") is True
        nothing_left(client, name)


def interrupted(agent: Agent, future: Future[Any]) -> bool:
    """Interrupt the agent once. Returns whether its order has ended: Python drops an interrupt that
    arrives in the callback of a weak reference."""
    agent.interrupt()
    return bool(wait([future], timeout=5).done)


def names_for(name: str) -> list[str]:
    return [f"{name}:{number}" for number in range(INJECTIONS)]


def hold(crew: list[Agent], names: list[str], api: Api, ttl: float = TTL) -> list[int]:
    """Each agent acquires one name, which is also the handle of the lease. Returns the fences."""
    orders = [
        agent.send("acquire", handle=name, api=api, name=name, ttl=ttl)
        for agent, name in zip(crew, names, strict=True)
    ]
    return [int(order.result()["fence"]) for order in orders]


def send_to_wait(crew: list[Agent], names: list[str], api: Api) -> list[Future[Any]]:
    return [
        agent.send("acquire", handle=name, api=api, name=name, timeout=None, ttl=TTL)
        for agent, name in zip(crew, names, strict=True)
    ]


def passed_by(
    client: AnyClient, crew: list[Agent], names: list[str], api: Api, spawn: Spawn
) -> tuple[list[Future[Any]], list[AnyLease]]:
    """Each agent is granted its name while it is stopped. That grant expires, and another holds the
    name when the agent goes on."""
    leases = [client.lock(name, ttl=30).acquire() for name in names]
    stopped = send_to_wait(crew, names, api)
    for name in names:
        queued(client, name, 1)
    for agent in crew:
        agent.pause()
    for lease in leases:
        assert lease.release()
    holders = [spawn(take, client, name).result()[0] for name in names]
    for agent in crew:
        agent.resume()
    return stopped, holders


def was_told(acquiring: Future[Any]) -> bool:
    """Assert that acquire raised OutcomeUnknown, because its process was stopped just before it
    sent a request. Returns True."""
    with pytest.raises(AgentFailed, match="OutcomeUnknown"):
        acquiring.result()
    return True


def follow(client: AnyClient, names: list[str], spawn: Spawn) -> list[Future[Any]]:
    """Wait for each name in a thread. If the store shows its queue, return once each waiter is in
    it, or has got the name already: a holder that stalled may have been late to renew."""
    following = [spawn(take, client, name) for name in names]
    if not isinstance(client.store, Queued) or not isinstance(client.store, Listed):
        return following
    for name, future in zip(names, following, strict=True):
        eventually(partial(waits, client, name, future))
    return following
