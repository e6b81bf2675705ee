"""The verdict of a race: it must be able to fail."""

from __future__ import annotations

from typing import Any

import pytest

RIGHT = {
    "mode": "lockkit", "requested": 200, "stock": 20, "accepted": 20, "sold": 20, "oversold": 0,
    "duplicates": 0, "p50_ms": 1.0, "p95_ms": 2.0, "left": 0, "failed": 0,
}  # fmt: skip

pytestmark = pytest.mark.usefixtures("example_importable")


def faults(**differing: Any) -> list[str]:
    from race.result import Result
    from race.result import faults as faults_of

    return faults_of(Result(**(RIGHT | differing)))


@pytest.mark.parametrize("mode", ["lockkit", "row", "fenced"])
def test_what_is_right_passes(mode: str) -> None:
    assert faults(mode=mode) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"oversold": 1, "sold": 21},
        {"duplicates": 1},
        {"sold": 19, "left": 1},  # accepted 20: a sale is missing
        {"sold": 0, "accepted": 0, "left": 20},  # nobody was served: that is no success
        {"left": 1},  # the stock does not agree with the orders
        {"failed": 1},
    ],
)
@pytest.mark.parametrize("mode", ["lockkit", "row", "fenced"])
def test_each_fault_is_seen(mode: str, wrong: dict[str, int]) -> None:
    assert faults(mode=mode, **wrong)


@pytest.mark.parametrize("mode", ["none", "naive", "paused"])
def test_the_unsafe_modes_must_oversell(mode: str) -> None:
    assert faults(mode=mode)
    assert faults(mode=mode, sold=25, oversold=5, accepted=25) == []


def test_fewer_orders_than_stock_are_all_served() -> None:
    assert faults(requested=5, accepted=5, sold=5, left=15) == []
    assert faults(requested=5, accepted=4, sold=4, left=16)


def test_a_result_counts_what_was_answered() -> None:
    from race.buyers import Answer
    from race.result import Ledger, result

    answers = [Answer(201, 0.010), Answer(200, 0.020), Answer(409, 0.030), Answer(500, 0.040)]
    outcome = result(
        "none", requested=3, stock=1, answers=answers, ledger=Ledger(left=0, sold=3, duplicates=1)
    )
    assert (outcome.accepted, outcome.oversold, outcome.failed) == (1, 2, 1)
    assert (outcome.p50_ms, outcome.p95_ms) == (30.0, 40.0)
