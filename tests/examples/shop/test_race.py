"""The race over HTTP: two gunicorn masters, a real database, real locks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from five_nodes import five_nodes

KEYS = ["mode", "requested", "stock", "accepted", "sold", "oversold", "duplicates",
        "p50_ms", "p95_ms"]  # fmt: skip
SMALL = ("race", "--orders", "80", "--stock", "10", "--format", "json")

pytestmark = pytest.mark.timeout(180)


def outcomes(finished: Any) -> dict[str, dict[str, Any]]:
    assert finished.returncode == 0, finished.stderr + finished.stdout
    shown = json.loads(finished.stdout)
    return {one["mode"]: one for one in (shown if isinstance(shown, list) else [shown])}


def assert_only_the_naive_go_wrong(by_mode: dict[str, dict[str, Any]]) -> None:
    for mode in ("none", "naive", "paused"):
        assert by_mode[mode]["oversold"] > 0
    for mode in ("lockkit", "row", "fenced"):
        right = {"requested": 80, "stock": 10, "accepted": 10, "sold": 10}
        assert by_mode[mode] | right | {"oversold": 0, "duplicates": 0} == by_mode[mode]


def test_all_modes_on_sqlite_with_the_embedded_locks(manage: Callable[..., Any]) -> None:
    by_mode = outcomes(manage(*SMALL))
    assert_only_the_naive_go_wrong(by_mode)
    assert [list(one) for one in by_mode.values()] == [KEYS] * 6


def test_all_modes_on_postgresql_with_redis(
    manage: Callable[..., Any], postgres_url: str, redis_url: str
) -> None:
    """With threads: see the demo."""
    finished = manage(*SMALL, SHOP_DATABASE_URL=postgres_url, LOCKKIT_URL=redis_url)
    assert_only_the_naive_go_wrong(outcomes(finished))


def test_all_modes_on_postgresql_with_its_own_locks(
    manage: Callable[..., Any], postgres_url: str
) -> None:
    assert_only_the_naive_go_wrong(outcomes(manage(*SMALL, SHOP_DATABASE_URL=postgres_url)))


def test_one_mode_is_one_json_object(manage: Callable[..., Any], redis_url: str) -> None:
    finished = manage(*SMALL, "--mode", "row", "--seed", "7", LOCKKIT_URL=redis_url)
    assert list(json.loads(finished.stdout)) == KEYS


@pytest.fixture(scope="module")
def redlock_url() -> Iterator[str]:
    with five_nodes() as nodes:
        yield nodes.url()


@pytest.fixture
def plain_url(redis_url: str) -> str:
    return f"{redis_url}?protocol=plain"


def test_what_needs_fences_is_not_raced_without(manage: Callable[..., Any]) -> None:
    finished = manage("race", "--mode", "fenced", LOCKKIT_URL="redlock://h1,h2,h3")
    assert finished.returncode == 1
    assert "these locks have no fencing tokens" in finished.stderr


@pytest.mark.parametrize(
    "locks", ["embedded", "redis_url", "plain_url", "postgres_url", "mariadb_url", "redlock_url"]
)
def test_django_and_flask_race_for_the_same_stock(
    manage: Callable[..., Any], request: pytest.FixtureRequest, locks: str
) -> None:
    """In an empty database, the demo makes the table of locks."""
    environment = {}
    if locks != "embedded":
        environment["LOCKKIT_URL"] = request.getfixturevalue(locks)
    arguments = ("--mode", "lockkit", "--machines", "django,flask")
    outcome = outcomes(manage(*SMALL, *arguments, **environment))["lockkit"]
    assert (outcome["sold"], outcome["oversold"], outcome["duplicates"]) == (10, 0, 0)


def test_a_clerk_who_is_paused_takes_back_what_was_sold_meanwhile(
    manage: Callable[..., Any],
) -> None:
    """Without the fence: five are sold while he sleeps, and he puts four of them back."""
    by_mode = outcomes(manage(*SMALL, "--mode", "paused", "--seed", "7"))
    assert by_mode["paused"]["sold"] > by_mode["paused"]["stock"]


def test_a_small_stock_is_enough(manage: Callable[..., Any]) -> None:
    arguments = ("race", "--orders", "8", "--stock", "1", "--format", "json")
    assert outcomes(manage(*arguments, "--mode", "paused"))["paused"]["oversold"] > 0
    assert outcomes(manage(*arguments, "--mode", "fenced"))["fenced"]["oversold"] == 0


def test_a_race_that_cannot_show_the_fault_fails(manage: Callable[..., Any]) -> None:
    finished = manage("race", "--orders", "5", "--stock", "50", "--mode", "none")
    assert finished.returncode == 1
    assert "proves nothing" in finished.stderr


@pytest.mark.parametrize(
    "arguments",
    [("--orders", "0"), ("--stock", "-1"), ("--mode", "best"), ("--machines", "django"),
     ("--workers", "gevent")],
)  # fmt: skip
def test_wrong_arguments_are_usage_errors(
    manage: Callable[..., Any], arguments: tuple[str, ...]
) -> None:
    finished = manage("race", *arguments)
    assert finished.returncode in (1, 2)
    assert "Traceback" not in finished.stderr


def test_a_store_that_is_down_is_said_before_anything_starts(
    manage: Callable[..., Any],
) -> None:
    finished = manage(*SMALL, LOCKKIT_URL="redis://:canary@127.0.0.1:1/0")
    assert finished.returncode == 69
    assert "Traceback" not in finished.stderr
    assert "canary" not in finished.stderr + finished.stdout
