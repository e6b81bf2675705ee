"""The Lua scripts and ``grant`` are one rule: the same histories, step by step, in both.

The server's clock is real, so the model is given the moment at which the server answered. TTLs are
either so long that it does not matter, or waited for. Fences and tickets are compared by their
order; the dead in the queue are not compared, for the scripts forget them later than the model.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import redis
from steps import Steps

from lockkit.engine import grant, state
from lockkit.engine.grant import SECOND
from lockkit.engine.times import alive_for
from lockkit.model.errors import KindMismatch, UpgradeRefused
from lockkit.model.settings import settings_from_url
from lockkit.model.types import Busy, Grant, Kind, LockState, Mode, Owner, Request
from lockkit.stores.redis import protocol
from lockkit.stores.registry import load_store
from lockkit.testing.conformance.base import eventually
from lockkit.testing.servers import RedisServer

LONG = 600.0
SHORT = 0.03
BRIEF = 0.4
TOKENS = [f"{number:032x}" for number in range(16)]
HISTORIES = 15
STEPS = 40
EXPIRING_HISTORIES = 6
EXPIRING_STEPS = 25


MUTEX: dict[str, Any] = {"kind": Kind.MUTEX}
SEMAPHORE: dict[str, Any] = {"kind": Kind.SEMAPHORE, "permits": 2, "shared": True}
READ: dict[str, Any] = {"kind": Kind.RW, "shared": True}
WRITE: dict[str, Any] = {"kind": Kind.RW, "shared": False}
ONE, TWO = {"entrant": "one"}, {"entrant": "two"}

CLAIMS: dict[str, list[dict[str, Any]]] = {
    "mutex": [MUTEX],
    "semaphore": [SEMAPHORE],
    "reader-writer": [READ, WRITE],
    "owners that enter again": [READ | ONE, WRITE | ONE, READ | TWO, WRITE | TWO],
    "reentrant": [
        {"kind": Kind.REENTRANT, "entrant": entrant} for entrant in ("one", "two", "three")
    ],
    "barging": [MUTEX, MUTEX | {"fair": False}],
    "barging readers": [READ, WRITE, READ | {"fair": False}, WRITE | {"fair": False}],
    "several kinds": [MUTEX, SEMAPHORE, SEMAPHORE | {"permits": 1}, WRITE],
    "another number of permits": [
        SEMAPHORE,
        SEMAPHORE | {"permits": 4},
        SEMAPHORE | {"permits": 3},
    ],
    "semaphores and readers": [SEMAPHORE | {"permits": 1}, READ, SEMAPHORE, WRITE],
}
"""What a history asks for: each token one of them, in turn."""


REFUSALS = (KindMismatch, UpgradeRefused)


class Pair:
    """One name, in Redis and in the model."""

    def __init__(
        self, backend: Steps, admin: redis.Redis, name: str, used_as: str = "mutex"
    ) -> None:
        self.backend = backend
        self.admin = admin
        self.name = name
        self.claims = CLAIMS[used_as]
        self.state = grant.State()
        self.numbers: dict[int, int] = {}  # of the model, to those of Redis
        self.trace: list[str] = []

    def request(self, token: str, **changes: Any) -> Request:
        claim = self.claims[int(token, 16) % len(self.claims)]
        owner = owner_of(str(claim.get("entrant", token[-1])))
        request = Request(self.name, token, LONG, owner, max_hold=60.0)
        return request._replace(**{**claim, **changes})

    def now(self) -> int:
        seconds, micros = self.admin.time()
        return int(seconds) * SECOND + int(micros)

    def step(self, what: str, request: Request, *, compare: bool = True) -> None:
        many = what == "extend"
        ours = attempt(getattr(self.backend, what), [request] if many else request)
        rule = attempt(getattr(grant, what), self.state, request, self.now())
        theirs = rule if rule in REFUSALS else [rule.reply] if many else rule.reply
        self.trace.append(f"{what} {request.token[-1]} {request} {ours} {theirs}")
        assert plain(ours) == plain(theirs), "\n".join(self.trace)
        if compare:  # else it will have expired in one of the two before we look at both
            self.compare()

    def break_(self, holder: grant.Holder | None, *, stale: bool) -> None:
        fence = holder.fence if holder else 1
        ours = self.backend.break_(self.name, self.numbers.get(fence, fence) + stale)
        theirs = grant.break_(self.state, fence + stale, self.now()).reply
        self.trace.append(f"break {fence} stale={stale} {ours} {theirs}")
        assert ours == theirs, "\n".join(self.trace)
        self.compare()

    def heard(self, seconds: float) -> int:
        """All who wait count as alive for so long; returns until when."""
        alive = self.now() + round(seconds * SECOND)
        for waiter in self.state.queue:
            waiter.alive = alive
        keys = self.backend.store._protocol.keys.of_name(self.name)
        self.admin.zadd(keys[4], {waiter.token: alive for waiter in self.state.queue})
        return alive

    def compare(self) -> None:
        """Who holds it, for how long, and who waits, in what order."""
        moment = self.now()
        infos = [i for i in self.backend.holders(self.name) if i.state is LockState.HELD]
        infos.sort(key=lambda i: (i.fence or 0, i.shared, i.left or 0))
        live = [h for h in self.state.holders if h.until > moment]
        live.sort(key=lambda h: (h.fence, h.shared, h.until))
        trace = "\n".join(self.trace)
        assert len(infos) == len(live), trace
        for info, holder in zip(infos, live, strict=True):
            assert info.owner == Owner.decode(holder.owner), trace
            assert info.left == pytest.approx((holder.until - moment) / SECOND, abs=5), trace
            assert info.ttl == holder.ttl / SECOND, trace
            assert self.same(holder.fence, info.fence or 0), trace
            assert info.shared == holder.shared, trace
            assert (info.kind, info.permits) == (self.state.kind, holder.permits), trace
        assert self.redis_queue() == [w.token for w in self.state.queue], trace

    def redis_queue(self) -> list[str]:
        _, queue, *_ = self.backend.store._protocol.keys.of_name(self.name)
        found: Any = self.admin.zrange(queue, 0, -1)
        return [token.decode() for token in found]

    def same(self, model: int, ours: int) -> bool:
        """Whether numbers correspond: one for one, and in the same order."""
        known = self.numbers.setdefault(model, ours)
        pairs = sorted(self.numbers.items())
        return known == ours and all(a[1] < b[1] for a, b in pairwise(pairs))


def owner_of(who: str) -> str:
    """Of claims of one owner that were granted in one step, any may be named as the holder."""
    return Owner(f"owner {who}", 1, "thread").encode()


def attempt(step: Any, *arguments: Any) -> Any:
    """Its reply, or the kind of its refusal."""
    try:
        return step(*arguments)
    except REFUSALS as refusal:
        return type(refusal)


def plain(reply: Any) -> Any:
    """A reply without what may differ."""
    if isinstance(reply, list):
        return [renewal.left and round(renewal.left, -1) for renewal in reply]
    if isinstance(reply, Grant):
        return "granted", reply.token, reply.left > SHORT
    if isinstance(reply, Busy):
        return "busy", reply.ticket > 0, reply.full, reply.holder
    return reply


@pytest.fixture(params=["redis", "valkey"])
def server(request: pytest.FixtureRequest) -> RedisServer:
    found: RedisServer = request.getfixturevalue(f"{request.param}_server")
    return found


@pytest.fixture
def backend(server: RedisServer) -> Iterator[Steps]:
    """Its waiters have no channel, so nobody is skipped for not listening: as in the model."""
    backend = Steps(load_store(settings_from_url(server.url, key_prefix="agree")))
    backend.store.inbox.forbid()
    yield backend
    backend.close()


@pytest.fixture
def all_are_alive(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In both, however long a history takes."""
    for module in (grant, state, protocol):
        monkeypatch.setattr(module, "alive_for", lambda _: 60.0)
    protocol.terms.cache_clear()
    yield
    protocol.terms.cache_clear()


def play(pair: Pair, chance: random.Random) -> None:
    token = chance.choice(TOKENS)
    unsure = chance.random() < 0.15
    dice = chance.random()
    if dice < 0.45:
        mode = chance.choice(list(Mode))
        limit = chance.choice([None, None, 0, 2])
        pair.step("acquire", pair.request(token, mode=mode, max_queue=limit))
    elif dice < 0.68:
        pair.step("release", pair.request(holder(pair, token, chance), unsure=unsure))
    elif dice < 0.82:
        pair.step("withdraw", pair.request(token, unsure=unsure))
    elif dice < 0.86:
        downgrade = {"mode": Mode.POLL, "shared": True}
        found = holder(pair, token, chance)
        if pair.request(found).kind is Kind.RW:
            pair.step("acquire", pair.request(found, **downgrade))
    elif dice < 0.94:
        terms = {"ttl": chance.choice([LONG, LONG / 2]), "number": chance.randrange(20)}
        pair.step("extend", pair.request(holder(pair, token, chance), **terms))
    else:
        pair.break_(anybody(pair, chance), stale=chance.random() < 0.3)


def anybody(pair: Pair, chance: random.Random) -> grant.Holder | None:
    return chance.choice(pair.state.holders) if pair.state.holders else None


def holder(pair: Pair, token: str, chance: random.Random) -> str:
    """Most often one who holds it: else little would happen."""
    found = anybody(pair, chance)
    return found.token if found and chance.random() < 0.7 else token


@pytest.mark.usefixtures("all_are_alive")
@pytest.mark.parametrize("used_as", CLAIMS)
@pytest.mark.parametrize(("server", "seed"), [("redis", 0), ("valkey", 1)], indirect=["server"])
def test_nothing_expires(server: RedisServer, backend: Steps, seed: int, used_as: str) -> None:
    with server.client() as admin:
        for number in range(HISTORIES):
            chance = random.Random(f"{seed}:{number}")
            pair = Pair(backend, admin, f"long:{seed}:{number}", used_as)
            flushed(admin)
            for _ in range(STEPS):
                play(pair, chance)


@pytest.mark.usefixtures("all_are_alive")
@pytest.mark.parametrize("used_as", CLAIMS)
def test_holders_expire(server: RedisServer, backend: Steps, used_as: str) -> None:
    """Of a short TTL, waited for; the waiters live on."""
    with server.client() as admin:
        for number in range(EXPIRING_HISTORIES):
            chance = random.Random(f"expiring:{number}")
            pair = Pair(backend, admin, f"short:{number}", used_as)
            flushed(admin)
            for _ in range(EXPIRING_STEPS):
                play(pair, chance)
                if pair.state.holders and chance.random() < 0.3:
                    expire(pair, chance)


def expire(pair: Pair, chance: random.Random) -> None:
    """A holder extends to almost nothing, and is gone before anybody asks again."""
    live = anybody(pair, chance)
    if live is not None and live.until > pair.now():
        pair.step("extend", pair.request(live.token, ttl=SHORT, number=99), compare=False)
        expired = pair.now() + SHORT * SECOND
        while pair.now() <= expired:
            time.sleep(SHORT / 10)
        pair.compare()


@pytest.mark.parametrize("used_as", ["mutex", "semaphore"])
def test_dead_waiters_are_passed(server: RedisServer, backend: Steps, used_as: str) -> None:
    """The first in the queue have not been heard of for too long; the last one has."""
    with server.client() as admin:
        pair = Pair(backend, admin, "dead", used_as)
        flushed(admin)
        holder, dead, dying, alive, late, other = TOKENS[:6]
        pair.step("acquire", pair.request(holder))
        if used_as == "semaphore":
            pair.step("acquire", pair.request(other))
        for token in (dead, dying):
            pair.step("acquire", pair.request(token, mode=Mode.ENQUEUE, ttl=0.5))
        pair.step("acquire", pair.request(alive, mode=Mode.ENQUEUE))
        over = pair.now() + alive_for(0.5) * SECOND
        while pair.now() <= over:
            time.sleep(0.05)
        pair.step("acquire", pair.request(alive, mode=Mode.POLL))
        pair.step("acquire", pair.request(late, mode=Mode.TRY))
        pair.step("release", pair.request(holder))
        assert pair.state.holders[-1].token == alive
        for token in (dead, dying):
            pair.step("acquire", pair.request(token, mode=Mode.POLL))
        pair.step("release", pair.request(alive))
        pair.step("acquire", pair.request(late))


@pytest.mark.parametrize("what", ["extend", "release", "poll", "taken"])
@pytest.mark.parametrize("used_as", ["mutex", "semaphore", "owners that enter again"])
def test_what_was_handed_over_is_its_holders_until_somebody_takes_it(
    server: RedisServer, backend: Steps, used_as: str, what: str
) -> None:
    with server.client() as admin:
        holder, waiter, other, next_one = TOKENS[5], TOKENS[3], TOKENS[1], TOKENS[7]

        def handed_over() -> tuple[Pair, int] | None:
            """Until when the waiter has it; None if the machine stalled before it got it."""
            pair = Pair(backend, admin, "handed", used_as)
            flushed(admin)
            pair.step("acquire", pair.request(holder))
            if used_as == "semaphore":
                pair.step("acquire", pair.request(next_one))
            pair.step("acquire", pair.request(waiter, mode=Mode.ENQUEUE, ttl=5.0))
            alive = pair.heard(BRIEF)
            pair.step("release", pair.request(holder))
            is_handed = any(holder.until == alive for holder in pair.state.holders)
            return (pair, alive) if is_handed else None

        pair, alive = eventually(handed_over)
        while pair.now() <= alive:
            time.sleep(BRIEF / 10)
        if what == "taken":
            pair.step("acquire", pair.request(other))
        if what in {"extend", "taken"}:
            pair.step("extend", pair.request(waiter, number=1))
        if what in {"poll", "taken"}:
            pair.step("acquire", pair.request(waiter, mode=Mode.POLL, ttl=5.0))
        pair.step("acquire", pair.request(next_one))
        pair.step("release", pair.request(waiter))


@pytest.mark.parametrize(
    ("used_as", "holder", "fair", "unfair"), [("barging", 0, 2, 3), ("barging readers", 1, 5, 3)]
)
def test_who_waits_takes_what_expired_out_of_turn(  # noqa: PLR0917 - fixtures
    server: RedisServer, backend: Steps, used_as: str, holder: int, fair: int, unfair: int
) -> None:
    """And leaves its place in the queue."""
    with server.client() as admin:
        pair = Pair(backend, admin, "out of turn", used_as)
        flushed(admin)
        pair.step("acquire", pair.request(TOKENS[holder]))
        for token in (TOKENS[fair], TOKENS[unfair]):
            pair.step("acquire", pair.request(token, mode=Mode.ENQUEUE))
        expire(pair, random.Random(0))
        pair.step("acquire", pair.request(TOKENS[unfair], mode=Mode.POLL))
        assert [h.token for h in pair.state.holders] == [TOKENS[unfair]]
        pair.step("release", pair.request(TOKENS[unfair]))
        assert [h.token for h in pair.state.holders] == [TOKENS[fair]]


def test_who_waits_keeps_the_kind(server: RedisServer, backend: Steps) -> None:
    """Its turn has come, and it has not asked yet; to ask for another kind is too early."""
    with server.client() as admin:
        for used_as in ("several kinds", "semaphores and readers"):
            pair = Pair(backend, admin, used_as, used_as)
            flushed(admin)
            holder, waiter, other = TOKENS[0], TOKENS[4], TOKENS[1]
            pair.step("acquire", pair.request(holder))
            pair.step("acquire", pair.request(waiter, mode=Mode.ENQUEUE))
            expire(pair, random.Random(0))
            pair.step("acquire", pair.request(other))
            pair.step("acquire", pair.request(waiter, mode=Mode.POLL))
            assert [h.token for h in pair.state.holders] == [waiter]


def test_the_dead_keep_no_kind_and_no_place(server: RedisServer, backend: Steps) -> None:
    with server.client() as admin:
        pair = Pair(backend, admin, "dead", "several kinds")
        flushed(admin)
        holder, waiter, other, next_one = TOKENS[0], TOKENS[4], TOKENS[1], TOKENS[5]
        pair.step("acquire", pair.request(holder))
        pair.step("acquire", pair.request(waiter, mode=Mode.ENQUEUE, ttl=0.5))
        over = pair.now() + alive_for(0.5) * SECOND
        while pair.now() <= over:
            time.sleep(0.05)
        expire(pair, random.Random(0))
        pair.step("acquire", pair.request(other))
        pair.step("acquire", pair.request(next_one))
        pair.step("acquire", pair.request(waiter, mode=Mode.POLL))


def test_who_barges_lets_those_in_who_may_go_with_it(server: RedisServer, backend: Steps) -> None:
    with server.client() as admin:
        pair = Pair(backend, admin, "with it", "barging readers")
        flushed(admin)
        writer, reader, barging = TOKENS[1], TOKENS[0], TOKENS[2]
        pair.step("acquire", pair.request(writer))
        pair.step("acquire", pair.request(reader, mode=Mode.ENQUEUE))
        expire(pair, random.Random(0))
        pair.step("acquire", pair.request(barging))
        assert {h.token for h in pair.state.holders if h.until > pair.now()} == {reader, barging}


def test_one_step_grants_so_many_and_the_next_goes_on(server: RedisServer, backend: Steps) -> None:
    readers = [f"{number:032x}" for number in range(0, 4 * (grant.PASS_MOST + 2), 4)]
    writer, late = TOKENS[1], TOKENS[2]
    with server.client() as admin:
        pair = Pair(backend, admin, "crowd", "owners that enter again")
        flushed(admin)
        pair.claims = [READ, WRITE, READ, WRITE]
        pair.step("acquire", pair.request(writer))
        for token in readers:
            pair.step("acquire", pair.request(token, mode=Mode.ENQUEUE), compare=False)
        pair.heard(LONG)  # this took a while
        pair.step("release", pair.request(writer))
        assert len(pair.state.holders) == grant.PASS_MOST
        pair.step("acquire", pair.request(late))
        assert len(pair.state.holders) == len(readers) + 1


def flushed(admin: redis.Redis) -> None:
    """No tombstone of another history: they are kept for a bucket, not for a name."""
    admin.flushall()
