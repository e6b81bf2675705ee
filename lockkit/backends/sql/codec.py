"""How the state of one name is kept in a row: its key, and JSON that any language can read."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from lockkit.errors import LayoutMismatch
from lockkit.grant import Holder, State, Waiter
from lockkit.types import Kind

__all__ = ["FREE", "decode", "encode", "row_id", "token_digest"]

FREE: Final = ""
"""The state of a name that nobody holds or waits for. Its row stays, for its fencing token."""

LAYOUT: Final = 2
"""Changes when an older lockkit could misread a row; releases of two layouts must not be mixed."""

_dump = json.JSONEncoder(separators=(",", ":")).encode
_load = json.JSONDecoder().decode


def row_id(prefix: str, name: str) -> str:
    """SHA-256 of the prefix and the name, each with its length before it: no two names share it."""
    parts = (part.encode() for part in (prefix, name))
    return hashlib.sha256(b"".join(b"%d:%b" % (len(p), p) for p in parts)).hexdigest()


def token_digest(token: str) -> str:
    """What is stored of a token: whoever reads the table cannot release or extend anything."""
    return hashlib.sha256(token.encode()).hexdigest()[:32]


def encode(state: State) -> str:
    """JSON of what is held and waited for; FREE if nothing is. The fence has its own column."""
    if not (state.holders or state.queue or state.tombs):
        return FREE
    document: dict[str, object] = {"v": LAYOUT}
    if state.kind is not Kind.MUTEX:
        document["kind"] = (state.kind, state.permits)
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
    if state.tombs:
        document["tombs"] = state.tombs
    return _dump(document)


def _form(claim: Holder | Waiter) -> tuple[object, ...]:
    """What a mutex need not say of each claim."""
    return (claim.shared, claim.entrant) if claim.shared or claim.entrant else ()


def decode(text: str, fence: int) -> State:
    """The state that ``encode`` wrote. Raises LayoutMismatch for what another release wrote."""
    if not text:
        return State(fence)
    try:
        document = _load(text)
        layout = document["v"]
        if layout == LAYOUT:
            return _state(document, fence)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise LayoutMismatch("the lock table holds a row that lockkit did not write") from error
    raise LayoutMismatch(
        f"the lock table holds rows of layout {layout}, this lockkit has {LAYOUT}: "
        "run one release of lockkit everywhere"
    )


def _state(document: dict[str, Any], fence: int) -> State:
    kind, permits = document.get("kind", (Kind.MUTEX, 0))
    return State(
        fence,
        [Holder(*fields) for fields in document.get("holders", ())],
        [Waiter(*fields) for fields in document.get("queue", ())],
        {token: (until, broken) for token, (until, broken) in document.get("tombs", {}).items()},
        Kind(kind),
        permits,
    )
