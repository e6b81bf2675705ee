"""Results as a table or as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence

from race.result import KEYS, UNSAFE, Result, faults

_WIDTH = 11


def header() -> str:
    return "".join(key.rjust(_WIDTH) for key in KEYS)


def line(outcome: Result) -> str:
    cells = "".join(str(value).rjust(_WIDTH) for value in outcome.shown().values())
    return f"{cells}   {verdict(outcome)}"


def verdict(outcome: Result) -> str:
    if faults(outcome):
        return "FAILED"
    return "wrong, as it must be" if outcome.mode in UNSAFE else "right"


def as_json(outcomes: Sequence[Result]) -> str:
    """One object for one race, a list for several."""
    shown = [outcome.shown() for outcome in outcomes]
    return json.dumps(shown[0] if len(shown) == 1 else shown)


def sentence(outcome: Result) -> str:
    """One race in words."""
    over = f"OVERSOLD BY {outcome.oversold}" if outcome.oversold else "nothing oversold"
    twice = f"{outcome.duplicates} ordered twice" if outcome.duplicates else "none ordered twice"
    return (
        f"sold {outcome.sold}, with {outcome.stock} in stock: {over}, {twice} "
        f"(p50 {outcome.p50_ms:.0f} ms, p95 {outcome.p95_ms:.0f} ms) - {verdict(outcome)}"
    )
