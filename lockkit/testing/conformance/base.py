"""Shared by the parts of the suite: fixtures, sizes, and waiting for events."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, ClassVar, Protocol, TypeVar

import pytest

from lockkit.model.clock import now
from lockkit.model.settings import settings_from_url
from lockkit.model.types import LockState
from lockkit.stores import contract
from lockkit.stores.registry import load_store
from lockkit.testing.agent import Agent, Crew
from lockkit.testing.blocking import AnyClient, Api, BlockingClient, client_of
from lockkit.testing.conformance import choice
from lockkit.testing.conformance.choice import (
    PROCESSES,
    UNHARMED,
    Wanted,
    Without,
    needs,
    test_of,
    wanted_by,
)
from lockkit.testing.faulty import FaultyExchange, give_faulty_wires
from lockkit.testing.targets import Target

__all__ = ["PROCESSES", "needs"]

TTL = 0.5
"""Seconds: the TTL of leases that should expire during the test."""

ROOMY = 30.0
"""Seconds: the TTL of all others, because a busy machine may renew late."""

PATIENT = 3.0
"""Seconds: the TTL of waiters that should be given up soon after they died, and not before."""

SLACK = 15.0
"""Seconds by which something may be late on a machine that stalls."""

PROMPT = 1.0
"""Seconds within which a waiter acts on a message, or on what it expected. A poll comes later. A
machine that stalls is later, too, so a test may try a few times."""

TRIES = 8

QUICK = 1.4
"""Seconds: less than the time between two signs of life of a waiter for a ROOMY lease."""

SOON = 20.0
"""Seconds after which a test gives up waiting for something that should happen."""

LONGEST = 2 * SOON
"""Seconds that a waiter may wait, in a long queue on a machine that stalls."""

INJECTIONS = 5
"""How often each fault happens, through each of the two APIs."""

T = TypeVar("T")


Connect = Callable[..., AnyClient]
"""Takes a URL and options. Makes a client that is closed after the test."""


class Spawn(Protocol):
    """Runs something in a thread."""

    def __call__(self, work: Callable[..., T], /, *arguments: Any) -> Future[T]: ...


Agents = Callable[[int], list[Agent]]


class Suite:
    """The fixtures. A test has ``client`` and ``other`` (a second client), a fresh ``name``,
    ``spawn`` for threads and ``agents`` for processes."""

    schemes: ClassVar[tuple[str, ...]] = ()
    """The URL schemes that this subclass covers."""

    tested: ClassVar[type[contract.Store]]
    """The store's class: its traits choose the tests."""

    reached: ClassVar[type[Target]] = Target
    """The class of what the fixture ``store`` yields: a server can be tested in more ways."""

    without_faults: ClassVar[str] = ""
    """Why ``reached`` is not a ServerTarget, although the store has a server. A test prints it."""

    cycles: ClassVar[int] = 2000
    """Lock cycles of the exclusion test, both APIs together."""

    def __init_subclass__(cls) -> None:
        """Take out the tests that do not apply: a skipped test looks like a missing server."""
        super().__init_subclass__()
        if by_hand := choice.replaced_in(cls):
            raise TypeError(f"{cls.__name__} switches off {by_hand}: its traits say what it can do")
        if not cls.schemes:
            return
        if all(map(cls._has, UNHARMED)) and not cls.without_faults:
            raise TypeError(
                f"{cls.__name__} needs a ServerTarget as 'reached', so that its server is made to "
                "fail, or says in 'without_faults' why it has none"
            )
        for name in dir(cls):
            if name.startswith("test_"):
                is_asked = all(map(cls._has, wanted_by(cls, name)))
                test = test_of(cls, name) if is_asked else None
                if getattr(cls, name) is not test:  # the others keep their order
                    setattr(cls, name, test)

    brief: ClassVar[float] = TTL
    """Seconds: the TTL of leases that expire. The store must grant a lease in less time."""

    @classmethod
    def _has(cls, wanted: Wanted) -> bool:
        if isinstance(wanted, Without):
            return not cls._has(wanted.trait)
        return issubclass(cls.tested, wanted) or issubclass(cls.reached, wanted)

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls) -> Iterator[Target]:
        """The store, for all tests of the class. Override it."""
        raise NotImplementedError(f"{cls.__name__} must override the fixture 'store'")

    @pytest.fixture(params=["sync", "async"])
    def api(self, request: pytest.FixtureRequest) -> Api:
        api: Api = request.param
        return api

    @pytest.fixture
    def connect(self, store: Target, api: Api) -> Iterator[Connect]:
        with ExitStack() as stack:

            def connected(url: str | None = None, **options: Any) -> AnyClient:
                return opened(stack, store, api, url, options)

            yield connected

    @pytest.fixture
    def client(self, connect: Connect) -> AnyClient:
        return connect()

    @pytest.fixture
    def other(self, connect: Connect) -> AnyClient:
        """Another client of the store, as another process would have."""
        return connect()

    @pytest.fixture
    def fault(self) -> FaultyExchange:
        return FaultyExchange()

    @pytest.fixture
    def faulty(self, store: Target, api: Api, fault: FaultyExchange) -> Iterator[AnyClient]:
        """A client whose exchanges fail as the fault says, within its block."""
        with ExitStack() as stack:
            yield opened(stack, store, api, None, {}, fault)

    @pytest.fixture
    def name(self) -> str:
        return f"conformance:{secrets.token_hex(6)}"

    @pytest.fixture
    def spawn(self) -> Iterator[Spawn]:
        """Run something in a thread; the future is waited for at the end of the test."""
        with ThreadPoolExecutor(64) as threads:
            yield threads.submit

    @pytest.fixture(scope="class")
    @classmethod
    def crew(cls, store: Target) -> Iterator[Crew]:
        options = {"ttl": ROOMY, "acquire_timeout": LONGEST, **store.options}
        crew = Crew(
            Target(store.url, options=options, environment=store.environment, setup=store.setup)
        )
        yield crew
        crew.dismiss()

    @pytest.fixture
    def agents(self, crew: Crew, api: Api) -> Agents:
        """A function that returns a given number of other processes."""
        return lambda number: crew.take(number, api)

    def test_it_is_what_the_url_leads_to(self, store: Target) -> None:
        """So no suite can leave out a trait that the store declares."""
        found = load_store(settings_from_url(store.url, **store.options))
        assert contract.traits_of(found) == contract.traits_of(self.tested)
        assert isinstance(store, self.reached)


def opened(  # noqa: PLR0917  the values of fixtures
    stack: ExitStack,
    store: Target,
    api: Api,
    url: str | None,
    options: dict[str, Any],
    fault: FaultyExchange | None = None,
) -> AnyClient:
    defaults = {"ttl": ROOMY, "acquire_timeout": LONGEST, **store.options_for(url)}
    settings = settings_from_url(url or store.url, **{**defaults, **options})
    loaded = load_store(settings)
    if fault is not None:
        give_faulty_wires(loaded, fault)
    client = client_of(api, loaded, settings)
    stack.callback(client.stop if isinstance(client, BlockingClient) else client.close)
    return client


def at_least_once(scene: Callable[[], bool]) -> None:
    """The scene goes well in one of a few tries. A stall of the machine may spoil others: a waiter
    that was silent for too long rightly loses its place. A faulty store spoils them all."""
    assert any(scene() for _ in range(TRIES)), f"it went well in none of {TRIES} tries"


def each_time(scene: Callable[[], bool], turns: int) -> None:
    """The scene goes well in every turn that ends soon, and in at least one.

    A waiter that was silent for too long rightly loses its place. That takes longer than QUICK,
    so a turn that took less did not fail because of a machine that stalls.
    """
    well = 0
    for turn in range(turns):
        started = now()
        if scene():
            well += 1
        else:
            seconds = now() - started
            assert seconds >= QUICK, f"it went wrong in turn {turn}, which took {seconds:.3f} s"
    assert well, f"it went well in none of {turns} turns"


def eventually(condition: Callable[[], T | None], seconds: float = SOON) -> T:
    """Ask, ever more slowly, until the answer is true; return it. Asking may cost a request."""
    began = now()
    while True:
        waited = now() - began  # taken first: after a stall, it asks once more
        if answer := condition():
            return answer
        assert waited < seconds, f"it did not happen within {seconds:g} s"
        time.sleep(min(0.05, 0.002 + waited / 4))


def queued(client: AnyClient, name: str, number: int) -> None:
    """Wait until exactly this number of waiters is in the queue."""
    eventually(lambda: waiters(client, name) == number)


def lasts(client: AnyClient, left: float | None, asked: float) -> bool:
    """Whether ``left`` is right just after a lease was granted or extended for ``asked`` s."""
    least = 0.0 if isinstance(client.store, contract.Capped) else asked - 5
    return left is not None and least < left <= asked


def waiters(client: AnyClient, name: str) -> int:
    info = client.inspect(name)
    return info.waiters if info else 0


def waits(client: AnyClient, name: str, waiting: Future[Any]) -> bool:
    """Whether the waiter is in the queue, which has no other, or its call has ended."""
    return waiting.done() or waiters(client, name) == 1


def held(client: AnyClient, name: str) -> bool:
    """Whether somebody holds the name. An expired lease does not count."""
    if not isinstance(client.store, contract.Listed):
        lease = client.lock(name).try_acquire()
        return lease is None or not lease.release()
    info = client.inspect(name)
    return info is not None and info.state is LockState.HELD


def nothing_left(client: AnyClient, name: str) -> None:
    """Nobody holds the name, nobody waits for it, and the next claim gets it at once."""
    if isinstance(client.store, contract.Listed):
        info = client.inspect(name)
        assert info is None, f"left behind: {info}"
    lease = client.lock(name).try_acquire()
    assert lease is not None
    assert lease.release()
