"""How the state of one name is kept in a row: its key, and JSON that any language can read."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable
from dataclasses import fields as fields_of
from typing import Any, Final, cast

from lockkit.engine.state import SECOND, Holder, State, Waiter
from lockkit.model.errors import UNNAMED, DamagedRecord, LayoutMismatch
from lockkit.model.types import Kind, Request

FREE: Final = ""
"""The state of a name that nobody holds or waits for. Its row stays, for its fencing token."""

LAYOUT: Final = 4
"""The version of the format. It changes when an older lockkit could misread a row. Releases of
lockkit with different layouts must not be mixed."""

WHOLE: Final = 9_000_000_000_000_000
"""Microseconds from 1970 to the year 2255: every number that lockkit writes is smaller."""

CHANNEL_MOST: Final = 63
"""The most bytes of a channel in PostgreSQL. lockkit's channels and tokens are shorter."""

MARK: Final = "t"
"""A placeholder for a token. In the JSON of a state, no equal text comes before the token."""

_dump = json.JSONEncoder(separators=(",", ":")).encode
_load = json.JSONDecoder().decode


@functools.lru_cache(1024)
def row_id(prefix: str, name: str) -> str:
    """SHA-256 of the prefix and the name, each after its length, so that no two names share it."""
    one, two = prefix.encode(errors="surrogatepass"), name.encode(errors="surrogatepass")
    return hashlib.sha256(b"%d:%b%d:%b" % (len(one), one, len(two), two)).hexdigest()


def token_digest(token: str) -> str:
    """The stored form of a token: a reader of the table can neither release nor extend with it."""
    return hashlib.sha256(token.encode()).hexdigest()[:32]


def encode(state: State) -> str:
    """JSON of the holders, the queue and the tombs; FREE if there are none. The fence has a column
    of its own."""
    if not (state.holders or state.queue or state.tombs):
        return FREE
    document: dict[str, object] = {"v": LAYOUT}
    if state.kind is not Kind.MUTEX:
        document["kind"] = state.kind
    if _is_as_taken(state):
        (h,) = state.holders
        document["taken"] = (h.token, h.owner, h.ttl, h.max_hold, *_form(h))
    elif state.holders:
        document["holders"] = [
            (
                h.token,
                h.owner,
                h.fence,
                h.granted,
                h.renewed,
                h.until,
                h.ttl,
                h.max_hold,
                h.extended,
                *_form(h),
            )
            for h in state.holders
        ]
    if state.queue:
        document["queue"] = [
            (w.token, w.owner, w.ticket, w.enqueued, w.alive, w.ttl, w.max_hold, *_form(w))
            for w in state.queue
        ]
        if channels := {w.token: w.channel for w in state.queue if w.channel}:
            document["channels"] = channels
    if state.tombs:
        document["tombs"] = state.tombs
    return _dump(document)


@functools.lru_cache(256)  # a release needs the text of its acquire again
def taken(request: Request) -> str:
    """The encoded state of a name that was free when this request took it. It is the same whenever
    that was: see ``_is_as_taken``."""
    form = request.shared, request.entrant, request.permits
    around = _around(request.owner, request.ttl, request.max_hold, request.kind, form)
    return token_digest(request.token).join(around)


@functools.lru_cache(256)
def _around(
    owner: str, ttl: float, max_hold: float | None, kind: Kind, form: tuple[bool, str, int]
) -> tuple[str, str]:
    """The text of that state before and after the token."""
    lasts, bound = round(ttl * SECOND), None if max_hold is None else round(max_hold * SECOND)
    holder = Holder(MARK, owner, 0, 0, 0, lasts, lasts, bound, 0, *form)
    before, after = encode(State(0, [holder], kind=kind)).split(f'"{MARK}"', 1)
    return f'{before}"', f'"{after}'


def _is_as_taken(state: State) -> bool:
    """Whether there is one holder, unchanged since its grant. Then all its times follow from the
    fence and are left out, so that the statements that take and free a name know the whole text."""
    if len(state.holders) != 1 or state.queue or state.tombs:
        return False
    (h,) = state.holders
    moments = (h.fence, h.granted, h.renewed, h.until - h.ttl, h.extended)
    return moments == (state.fence,) * 4 + (0,)


def _form(claim: Holder | Waiter) -> tuple[object, ...]:
    """The fields that only shared and reentrant claims need."""
    return (claim.shared, claim.entrant, claim.permits) if claim.shared or claim.entrant else ()


def is_whole(value: object) -> bool:
    """Whether lockkit can have written this as a moment, a number or a duration."""
    return type(value) is int and 0 <= value < WHOLE


def decode(text: object, fence: object) -> State:
    """The state that ``encode`` wrote.

    Raises LayoutMismatch if another version of lockkit wrote it, DamagedRecord if none did.
    """
    if not is_whole(fence):
        raise damaged_record("its fence")
    number = cast("int", fence)
    if text == FREE:
        return State(number)
    try:
        return _state(_document(text), number)
    except LayoutMismatch:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise damaged_record("its state") from error


def damaged_record(what: str) -> DamagedRecord:
    return DamagedRecord(f"what the lock table keeps of {UNNAMED} cannot be read: {what}")


def _document(text: object) -> dict[str, Any]:
    """The JSON in a state. A text that is not ASCII is damaged, as lockkit writes only ASCII."""
    if not (isinstance(text, str) and text.isascii()):
        raise TypeError("not a text of ours")
    document: dict[str, Any] = _load(text)
    layout = document["v"]
    if layout == LAYOUT:
        return document
    if not is_whole(layout):
        raise ValueError("not a layout")
    raise LayoutMismatch(
        f"the lock table holds rows of layout {layout}, this lockkit has {LAYOUT}: "
        "run one release of lockkit everywhere"
    )


def _state(document: dict[str, Any], fence: int) -> State:
    if (fields := document.pop("taken", None)) is not None:
        token, owner, ttl, max_hold, *form = fields
        document["holders"] = [
            (token, owner, fence, fence, fence, fence + ttl, ttl, max_hold, 0, *form)
        ]
    tombs = document.get("tombs", {})
    state = State(
        fence,
        [Holder(*fields) for fields in document.get("holders", ())],
        [Waiter(*fields) for fields in document.get("queue", ())],
        {token: (until, broken) for token, (until, broken) in tombs.items()},
        Kind(document.get("kind", Kind.MUTEX)),
    )
    channels = document.get("channels", {})
    for waiter in state.queue:
        waiter.channel = channels.get(waiter.token, "")
    if not (
        all(map(_is_claim, state.holders))
        and all(map(_is_claim, state.queue))
        and all(is_whole(until) for until, _ in state.tombs.values())
    ):
        raise ValueError("a field of another type")
    return state


def _is_claim(claim: Holder | Waiter) -> bool:
    return all(check(getattr(claim, name)) for name, check in _FIELDS[type(claim)])


def _is_sayable(value: object) -> bool:
    """Whether a database can send it in a message, like lockkit's own tokens and channels."""
    return (
        isinstance(value, str)
        and len(value) < CHANNEL_MOST
        and value.isascii()
        and value.isprintable()
    )


_CHECKS: Final[dict[str, Callable[[object], bool]]] = {
    "str": lambda value: isinstance(value, str),
    "int": is_whole,
    "bool": lambda value: isinstance(value, bool),
    "int | None": lambda value: value is None or is_whole(value),
    "token": _is_sayable,
    "channel": _is_sayable,
}
"""The checks by the type of a field; for ``token`` and ``channel``, by its name."""

_FIELDS: Final = {
    kind: [(f.name, _CHECKS.get(f.name) or _CHECKS[str(f.type)]) for f in fields_of(kind)]
    for kind in (Holder, Waiter)
}
