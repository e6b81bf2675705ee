"""``locks`` and the orders that were begun and that nobody holds any more: shown, and resolved."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from claiming import MADE, begun, died, left_behind, order_of, rules
from command_line import Screen, locks, locks_process

import lockkit
from lockkit.leases.client import LockClient
from lockkit.leases.lease import give_back
from lockkit.orders import Proceed, Refusal, drive
from lockkit.orders.redis_records import RedisOrderRecords, orphans


@pytest.fixture
def client(redis_url: str) -> Iterator[LockClient]:
    found = lockkit.connect(redis_url, ttl=30)
    yield found
    found.close()


def test_they_are_shown_as_stuck(client: LockClient) -> None:
    order = left_behind(client)
    (row,) = locks(client).rows
    assert row[:4] == ["default", order.lock_name, "orphan", "STUCK"]
    reason = locks(client).out.splitlines()[-1]
    assert reason.strip() == "the order was started and its outcome is unknown: use `locks resolve`"
    assert locks(client, "--fail-on-stuck").status == 3
    shown = locks(client, "show", order.lock_name).out
    assert "POST /orders/ order A-1" in shown
    assert "waiters" not in shown


def test_as_json(client: LockClient) -> None:
    order = left_behind(client)
    (found,) = locks(client, "--stuck", "--format", "json").locks
    (orphan,) = orphans(client)
    assert (found["name"], found["state"], found["stuck"]) == (order.lock_name, "orphan", "orphan")
    assert (found["fence"], found["waiters"]) == (orphan.fence, 0)
    assert found["owner"]["label"] == "POST /orders/ order A-1"
    assert found["left"] > 86000
    assert json.loads(locks(client, "--format", "jsonl").out)["state"] == "orphan"
    assert "orphan" in locks(client, "--format", "jsonl").out


def test_what_runs_or_has_ended_is_none(client: LockClient) -> None:
    orders, store = rules(), RedisOrderRecords(client)
    running = begun(orders, order_of(orders, "A-1"), store, client)
    ended = begun(orders, order_of(orders, "A-2"), store, client)
    drive(orders.settle(ended, MADE), store, client)
    give_back(ended.lease)
    (found,) = locks(client, "--format", "json").locks
    assert (found["name"], found["state"]) == (running.order.lock_name, "held")
    refused = locks(client, "resolve", running.order.lock_name, "--done", "--yes")
    assert (refused.status, "is not an orphan" in refused.err) == (1, True)
    assert "give the NAME" not in refused.err
    by_id = locks(client, "resolve", "A-1", "--done", "--yes")
    assert (by_id.status, "an order ID is not enough: give the NAME" in by_id.err) == (1, True)
    give_back(running.lease)


@pytest.mark.parametrize("how", ["--done", "--retry"])
@pytest.mark.parametrize("form", ["name", "key"])
def test_resolved(how: str, form: str, client: LockClient) -> None:
    order = left_behind(client)
    done = locks(client, "resolve", order.lock_name if form == "name" else order.key, how, "--yes")
    assert (done.status, done.err) == (0, "")
    assert "resolved" in done.out
    assert locks(client).rows == []
    answer = drive(rules().admit(order), RedisOrderRecords(client), client)
    if how == "--done":
        assert isinstance(answer, Refusal)
        assert answer.code == "order-completed"
    else:
        assert isinstance(answer, Proceed)
        give_back(answer.lease)


@pytest.mark.parametrize("how", ["done", "retry"])
def test_the_store_keeps_who_resolved_it_and_why(how: str, client: LockClient) -> None:
    order = left_behind(client)
    (orphan,) = orphans(client)
    reason = ("--reason", "ticket 7")
    assert locks(client, "resolve", order.key, f"--{how}", "--yes", *reason).status == 0
    (words,) = client.last_words(order.lock_name)
    assert (words.fence, words.owner) == (orphan.fence, orphan.owner)
    shown = locks(client, "show", order.lock_name).out
    why = rf"reason: +an operator resolved it as {how} \ds ago: \S+@\S+:\d+ uid=\d+.*: ticket 7\n"
    assert re.search(why, shown)


def test_of_a_long_reason_the_store_keeps_the_beginning(client: LockClient) -> None:
    """As of a release."""
    order = left_behind(client)
    reason = ("--reason", "ticket 7 " + "x" * 999)
    assert locks(client, "resolve", order.key, "--done", "--yes", *reason).status == 0
    (words,) = client.last_words(order.lock_name)
    assert "ticket 7 x" in words.broken_by
    assert len(words.broken_by) == 200


def test_without_a_terminal_it_needs_yes_and_on_one_it_asks(client: LockClient) -> None:
    order = left_behind(client)
    command = ("resolve", order.lock_name, "--retry")
    assert locks(client, *command).status == 2
    asked = locks(client, *command, stdin=Screen("n\n"), terminal=True)
    assert (asked.status, "Are you sure that it did not take effect?" in asked.err) == (1, True)
    assert len(list(orphans(client))) == 1
    assert locks(client, *command, stdin=Screen("y\n"), terminal=True).status == 0


def test_only_what_was_displayed(client: LockClient) -> None:
    order = left_behind(client)
    (orphan,) = orphans(client)
    assert orphan.fence is not None
    command = ("resolve", order.key, "--done", "--yes", "--fence")
    other = locks(client, *command, str(orphan.fence - 1))
    assert (other.status, "not resolved: its fencing token is" in other.err) == (1, True)
    assert locks(client, *command, str(orphan.fence), "--dry-run").status == 0
    assert len(list(orphans(client))) == 1
    assert locks(client, *command, str(orphan.fence)).status == 0


def test_tried_again_while_the_operator_was_reading(client: LockClient) -> None:
    orders, store = rules(ORPHANS="retry"), RedisOrderRecords(client)
    order = order_of(orders)
    died(begun(orders, order, store, client))

    class Reading(Screen):
        def readline(self, *_: object) -> str:  # type: ignore[override]
            died(begun(orders, order, store, client))
            return "y\n"

    shown = locks(client, "resolve", order.key, "--done", stdin=Reading(), terminal=True)
    assert shown.status == 1
    assert "no longer the orphan that was shown" in shown.err
    assert len(list(orphans(client))) == 1


@pytest.mark.parametrize("argv", [["--done", "--retry"], []])
def test_one_of_done_and_retry(argv: list[str], client: LockClient) -> None:
    assert locks(client, "resolve", "order:x", *argv).status == 2


def test_release_is_for_leases(client: LockClient) -> None:
    order = left_behind(client)
    refused = locks(client, "release", order.lock_name, "--yes")
    assert (refused.status, "see locks resolve" in refused.err) == (1, True)
    with client.lock(order.lock_name):
        assert locks(client, "release", order.lock_name, "--dry-run").status == 0


def test_every_attempt_is_on_record(client: LockClient, caplog: pytest.LogCaptureFixture) -> None:
    order = left_behind(client)
    with caplog.at_level(logging.WARNING, "lockkit.audit"):
        locks(client, "resolve", order.key, "--done", "--yes")
    (line,) = caplog.messages
    assert f"name={order.lock_name}" in line
    assert "outcome=resolved" in line
    assert line.endswith("as=done reason=-")


def test_hostile_order_ids_cannot_act_on_a_terminal(client: LockClient) -> None:
    left_behind(client, "\\x1b[2J")
    orders, store = rules(), RedisOrderRecords(client)
    order = order_of(orders, "=cmd|' /C calc'!A0")
    died(begun(orders, order, store, client))
    for argv in ([], ["--format", "jsonl"], ["show", order.lock_name]):
        shown = locks(client, *argv)
        assert "\x1b" not in shown.out
        assert '\n"=' not in shown.out


def test_a_record_of_a_newer_release_is_shown_and_left_alone(client: LockClient) -> None:
    import redis

    order = left_behind(client)
    with redis.Redis.from_url(client.settings.location) as admin:
        (key,) = admin.keys("*}:o:*")
        value = admin.get(key)
        assert isinstance(value, bytes)
        admin.set(key, value.replace(b'"version": 2', b'"version": 3'), keepttl=True)
    (row,) = locks(client, "--format", "json").locks
    assert (row["state"], row["owner"]) == ("orphan", None)
    refused = locks(client, "resolve", order.key, "--done", "--yes")
    assert (refused.status, "newer release" in refused.err) == (1, True)
    assert locks(client, "resolve", order.key, "--retry", "--yes").status == 0


def test_prune_says_that_it_needs_an_application(client: LockClient) -> None:
    shown = locks(client, "prune")
    assert (shown.status, shown.out) == (1, "")
    assert "manage.py locks prune" in shown.err
    assert locks(client, "prune", "--database", "x").status == 1
    assert locks(client, "prune", "--batch", "0").status == 2


def test_as_a_program(client: LockClient, redis_url: str) -> None:
    order = left_behind(client)
    shown = locks_process("--format", "json", url=redis_url)
    assert [found["name"] for found in shown.locks] == [order.lock_name]
    assert locks_process("resolve", order.key, "--done", "--yes", url=redis_url).status == 0
    assert locks_process(url=redis_url).out == ""


def test_a_listing_without_orders_imports_no_engine() -> None:
    program = (
        "import sys; from lockkit.__main__ import main; main(['--url', 'memory://', 'locks']); "
        "print('lockkit.orders' in sys.modules)"
    )
    command = [sys.executable, "-c", program]
    assert subprocess.check_output(command, text=True, stderr=subprocess.DEVNULL) == "False\n"
