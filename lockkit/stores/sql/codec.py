"""How the state of one name is kept in a row: its key, and JSON that any language can read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import fields as fields_of
from typing import Any, Final, cast

from lockkit.engine.grant import Holder, State, Waiter
from lockkit.model.errors import UNNAMED, DamagedRecord, LayoutMismatch
from lockkit.model.types import Kind

FREE: Final = ""
"""The state of a name that nobody holds or waits for. Its row stays, for its fencing token."""

LAYOUT: Final = 3
"""Changes when an older lockkit could misread a row; releases of two layouts must not be mixed."""

WHOLE: Final = 9_000_000_000_000_000
"""Microseconds until the year 2255: no number of ours is as great."""

CHANNEL_MOST: Final = 63
"""Bytes of a channel that PostgreSQL still takes."""

_dump = json.JSONEncoder(separators=(",", ":")).encode
_load = json.JSONDecoder().decode


def row_id(prefix: str, name: str) -> str:
    """SHA-256 of the prefix and the name, each with its length before it: no two names share it."""
    parts = (part.encode(errors="surrogatepass") for part in (prefix, name))
    return hashlib.sha256(b"".join(b"%d:%b" % (len(p), p) for p in parts)).hexdigest()


def token_digest(token: str) -> str:
    """The stored form of a token: a reader of the table can neither release nor extend with it."""
    return hashlib.sha256(token.encode()).hexdigest()[:32]


def encode(state: State) -> str:
    """JSON of what is held and waited for; FREE if nothing is. The fence has its own column."""
    if not (state.holders or state.queue or state.tombs):
        return FREE
    document: dict[str, object] = {"v": LAYOUT}
    if state.kind is not Kind.MUTEX:
        document["kind"] = state.kind
    if state.holders:
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


def _form(claim: Holder | Waiter) -> tuple[object, ...]:
    """What a mutex need not say of each claim."""
    return (claim.shared, claim.entrant, claim.permits) if claim.shared or claim.entrant else ()


def is_whole(value: object) -> bool:
    """A moment, a number or a duration of ours: nothing else can be compared and counted on."""
    return type(value) is int and 0 <= value < WHOLE


def decode(text: object, fence: object) -> State:
    """The state that ``encode`` wrote.

    Raises LayoutMismatch for what another release wrote, DamagedRecord for what none did.
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
    """We write nothing but ASCII."""
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


def _is_text(value: object) -> bool:
    return isinstance(value, str)


_CHECKS: Final[dict[str, Callable[[object], bool]]] = {
    "token": _is_text,
    "owner": _is_text,
    "entrant": _is_text,
    "channel": lambda value: isinstance(value, str) and len(value) < CHANNEL_MOST,
    "shared": lambda value: isinstance(value, bool),
    "max_hold": lambda value: value is None or is_whole(value),
} | dict.fromkeys(
    (
        "fence",
        "ticket",
        "granted",
        "renewed",
        "until",
        "ttl",
        "extended",
        "enqueued",
        "alive",
        "permits",
    ),
    is_whole,
)

_FIELDS: Final = {
    kind: [(field.name, _CHECKS[field.name]) for field in fields_of(kind)]
    for kind in (Holder, Waiter)
}
