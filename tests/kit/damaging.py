"""Damages records in a store, and checks what every step answers then.

A ``Used`` store is in use, and can go back to the data it had. ``check`` looks at it after a
damage, and tries every step from that same state.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import chain, count, islice
from typing import Any, NamedTuple, Protocol

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from steps import Steps

from lockkit.model.errors import DamagedRecord, LayoutMismatch, LockError
from lockkit.model.names import repair_command
from lockkit.model.types import Grant, Kind, LockInfo, LockState, Mode, Owner, Request
from lockkit.operate.columns import WIDE, as_json
from lockkit.operate.inspect import stuck
from lockkit.operate.stores import Row
from lockkit.stores.redis.layout import bucket_of

EXAMPLES = settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
TTL = 600.0
OWNER = Owner("web-1", 4121, "MainThread", "POST /stock/42").encode()
MUTEX, QUIET, SHARED, RW, FREE, BROKEN = islice(
    (name for name in map("n{}".format, count()) if bucket_of(name) == 7), 6
)
"""In Redis all of them are in one bucket."""
NAMES = (MUTEX, QUIET, SHARED, RW)


def request(name: str, number: int, mode: Mode = Mode.ENQUEUE, **claim: Any) -> Request:
    if name == SHARED:
        claim = {"kind": Kind.SEMAPHORE, "permits": 2, "shared": True, **claim}
    if name == RW:
        claim = {"kind": Kind.RW, "shared": True, "entrant": "me", **claim}
    return Request(name, f"{number:032x}", TTL, OWNER, mode, max_hold=900.0, **claim)


HELD = [
    request(MUTEX, 1),
    request(QUIET, 2),
    request(SHARED, 3),
    request(SHARED, 4),
    request(RW, 5),
]
WAITING = [
    *(request(MUTEX, 11), request(MUTEX, 12), request(SHARED, 13)),
    request(RW, 14, shared=False, entrant="you"),
]
WITHDRAWN = request(FREE, 21, unsure=True)
OTHERS = [
    *(request(name, 31 + i) for i, name in enumerate(NAMES[:3])),
    request(RW, 41, shared=False, entrant="they"),
]


class Used(Protocol):
    """A store in use."""

    backend: Steps
    fences: dict[str, int]
    names: tuple[str, ...]

    def data(self) -> Any:
        """All of it, to go back to."""

    def put(self, data: Any) -> None: ...

    def content(self) -> object:
        """All of it, to compare."""

    def held(self) -> object:
        """What is held, without the waiters."""


def use(backend: Steps, names: tuple[str, ...] = NAMES) -> dict[str, int]:
    """Hold, wait, withdraw and break. Returns the fences by their tokens."""
    broken = backend.acquire(request(BROKEN, 6))
    backend.break_(BROKEN, broken.fence, "somebody (uid 7)")
    for step in _of(names, HELD, WAITING):
        backend.acquire(step)
    backend.withdraw(WITHDRAWN)
    replies = [(step.token, backend.acquire(step)) for step in _of(names, HELD)]
    return {token: reply.fence for token, reply in replies if isinstance(reply, Grant)}


def _of(names: tuple[str, ...], *requests: list[Request]) -> Iterator[Request]:
    return (r for r in chain(*requests) if r.name in names)


def pieces(value: bytes) -> st.SearchStrategy[bytes]:
    """Any bytes; the value cut off; the value with something else in the middle."""
    places = st.integers(0, len(value))
    something = st.one_of(
        st.binary(min_size=1, max_size=8),
        st.sampled_from([b"x", b" ", b"-", b"nan", b"inf", b"1e400", b"9" * 40, b"\xff\r\n"]),
    )
    pairs = st.tuples(places, something)
    return st.one_of(
        st.binary(max_size=200),
        places.map(lambda end: value[:end]),
        places.map(lambda begin: value[begin:]),
        pairs.map(lambda p: value[: p[0]] + p[1] + value[p[0] :]),
        pairs.map(lambda p: value[: p[0]] + p[1] + value[p[0] + len(p[1]) :]),
    )


class Try(NamedTuple):
    request: Request
    step: Callable[[], object]


def tries(store: Used) -> Iterator[Try]:
    backend = store.backend
    for r in _of(store.names, OTHERS):
        for terms in ({}, {"mode": Mode.TRY}, {"mode": Mode.TRY, "fair": False}, {"max_queue": 1}):
            yield _try(backend.acquire, r, **terms)
    for r in _of(store.names, WAITING):
        yield _try(backend.acquire, r, mode=Mode.POLL)
        yield _try(backend.withdraw, r)
    for r in _of(store.names, HELD):
        yield _try(backend.acquire, r, mode=Mode.POLL)
        yield _try(backend.release, r)
        yield _try(backend.release, r, unsure=True)
        yield _try(backend.withdraw, r, unsure=True)
        yield _try(lambda r: backend.extend([r])[0].error, r, number=7)
        yield _try(lambda r: backend.break_(r.name, store.fences[r.token]), r)


def _try(step: Callable[[Request], object], r: Request, **terms: Any) -> Try:
    return Try(r, lambda: step(r._replace(**terms)))


def check(store: Used) -> None:
    """Every step answers rightly or with a typed error, and looking writes nothing."""
    before, content, held = store.data(), store.content(), store.held()
    rows, other = _listed(store)
    check_shown(store, rows, other)
    assert store.content() == content, "looking writes"
    for r, step in tries(store):
        if store.content() != content:
            store.put(before)
        reply = _outcome(step)
        if isinstance(reply, Grant) and r in OTHERS:
            assert not other, "a grant over what another release wrote"
            assert _has_room(rows, r), "a grant over what is held or cannot be read"
            assert reply.fence > max(store.fences.values())
        if isinstance(reply, DamagedRecord):
            assert store.held() == held, "not applied"
            assert other or any(row.damage for row in rows), "refused, and not listed"
        if any(row.name == r.name and "its r" in row.damage for row in rows):
            assert isinstance(reply, DamagedRecord)
    if other is None:
        _check_repair(store, before, rows)


def _listed(store: Used) -> tuple[list[LockInfo], LayoutMismatch | None]:
    """What is listed, and the error if another release wrote something."""
    rows = []
    try:
        for row in store.backend.holders():
            rows.append(row)  # noqa: PERF402  what came before an error counts
    except LayoutMismatch as error:
        return rows, error
    return rows, None


def check_shown(store: Used, rows: list[LockInfo], other: LayoutMismatch | None) -> None:
    """All that operators see can be shown. Only another release's data keep last words back."""
    words = store.backend.last_words() if other is None else []
    for row in (Row("default", info, stuck(info)) for info in (*rows, *words)):
        json.dumps(as_json(row), allow_nan=False)
        assert all(isinstance(column.cell(row), str) for column in WIDE)
    others = _outcome(store.backend.prefixes)
    assert isinstance(others, dict | LockError | None)


def _check_repair(store: Used, before: Any, rows: list[LockInfo]) -> None:
    """A damaged name is in order after its repair. Nothing else is touched."""
    damaged = {row.name for row in rows if _is_ours_to_repair(row)}
    for name in store.names:
        store.put(before)
        held = store.held()
        repaired = _outcome(lambda name=name: store.backend.repair(name))
        if name in damaged:
            assert repaired is True
            assert not any(row.state is LockState.DAMAGED for row in store.backend.holders(name))
        else:
            assert repaired is False or isinstance(repaired, DamagedRecord)
            assert store.held() == held


def _is_ours_to_repair(row: LockInfo) -> bool:
    """Whether it is damaged, but not a key that many names share, nor one of another program."""
    found = stuck(row)
    is_endless = found is not None and found.code == "no-ttl"
    return is_endless or repair_command(row.name, "") in row.damage


def _outcome(step: Callable[[], object]) -> object:
    """The reply, or a typed error. Any other error is raised."""
    try:
        return step()
    except LockError as error:
        return error


def _has_room(rows: list[LockInfo], r: Request) -> bool:
    """Whether the listing lets this claim in. What is damaged lets nobody in."""
    mine = [row for row in rows if row.name == r.name and row.state is not LockState.ABANDONED]
    if any(row.state is LockState.DAMAGED for row in mine):
        return False
    live = [row for row in mine if row.state is LockState.HELD]
    return not live or (r.shared and all(row.shared for row in live) and len(live) < r.permits)
