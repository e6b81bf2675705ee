"""Each system check: triggered, with its hint, and silenced by what the hint says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from database_settings import complete, sqlite
from django.core.management.base import SystemCheckError
from django.db import connections
from django.test import override_settings
from places import ROOT
from system_checks import manage_check, shown_until_silenced

from lockkit.testing.servers import RedisServer
from lockkit_django import locks
from lockkit_django.operate.checks import check_settings, check_store

REDIS = "redis://:canary@127.0.0.1:1/0"
LEAST = (
    "on >secret ~{shop:* ~lockkit:prefixes resetchannels &shop:wake:* +evalsha +script|load +hscan "
    "+ping +subscribe +@hash +@sortedset +pexpire +publish +time"
)


def alias(**entry: Any) -> dict[str, Any]:
    return {"LOCKKIT": {"default": {"LOCATION": REDIS, **entry}}}


CASES = [
    ("E001", alias(TLL=1), alias(TTL=30)),
    ("E001", {"LOCKKIT": 3}, alias()),
    ("E001", {"LOCKKIT": {"defualt": REDIS}}, alias()),
    ("E005", {**alias(), "LOCKKIT_ORDER": {}}, {**alias(), "LOCKKIT_ORDERS": None}),
    ("E005", {**alias(), "LOCKKIT_URL": REDIS}, alias()),
    ("E005", {**alias(), "LOCKIT": {}}, {**alias(), "LOCKSMITH": 1}),
    ("E002", {**alias(), "LOCKKIT_VIEWS": {"TIMOUT": 1}}, {**alias(), "LOCKKIT_VIEWS": {}}),
    ("E003", alias(OPTIONS={"nope": 1}), alias(OPTIONS={"socket_timeout": 1})),
    ("E003", alias(LOCATION="rediss2://x"), alias()),
    ("E003", alias(LOCATION="postgresql://shop:p@ss:canary@h/shop"), alias()),
    ("W001", {**alias(LOCATION="memory://"), "DEBUG": False}, alias()),
    ("W001", alias(LOCATION="memory://"), {**alias(LOCATION="memory://"), "DEBUG": True}),
    ("W001", {**alias(LOCATION="sqlalchemy+sqlite://"), "DEBUG": False}, alias()),
    ("I001", alias(LOCATION="sqlite:////nonexistent/locks"), alias()),
    ("W002", alias(MAX_HOLD=None), alias(MAX_HOLD=600)),
    ("W003", alias(TTL=1.5), alias(TTL=2)),
    ("W004", alias(TTL=301), alias(TTL=300)),
    ("W008", {**alias(LOCATION="sqlite:///locks.sqlite3"), "DEBUG": True}, alias()),
    ("W008", {**alias(LOCATION="sqlalchemy+sqlite+pysqlite:///a"), "DEBUG": True}, alias()),
]


def found(check: Any = check_settings) -> dict[str, Any]:
    return {str(message.id): message for message in check()}


@pytest.mark.parametrize(("identifier", "wrong", "right"), CASES)
def test_checks(identifier: str, wrong: dict[str, Any], right: dict[str, Any]) -> None:
    with override_settings(**wrong):
        message = found()[f"lockkit.{identifier}"]
        assert message.hint
        assert "canary" not in str(message)
        assert shown_until_silenced(f"lockkit.{identifier}")
    with override_settings(**right):
        assert found() == {}


@pytest.mark.parametrize(
    ("name", "expected"),
    [("shop.sqlite3", {"I001", "W008"}), (":memory:", {"W001"}), ("/tmp/shop.sqlite3", {"I001"})],
)
def test_a_database_of_the_project(
    name: str, expected: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections.settings, "default", complete(sqlite(Path(name))))
    with override_settings(**alias(LOCATION="django://default"), DEBUG=False):
        assert {identifier.rpartition(".")[2] for identifier in found()} == expected


@override_settings(LOCKKIT={"default": {"LOCATION": REDIS, "TLL": 1}})
def test_an_error_stops_a_command_and_says_what_to_change() -> None:
    with pytest.raises(SystemCheckError, match="did you mean 'TTL'"):
        manage_check()


@override_settings(**alias())
def test_only_a_deployment_check_asks_the_store() -> None:
    assert "lockkit.E010" not in manage_check()
    with pytest.raises(SystemCheckError, match=r"lockkit\.E010") as caught:
        manage_check("--deploy")
    assert "canary" not in str(caught.value)
    assert shown_until_silenced("lockkit.E010", "--deploy")


def test_a_file_in_a_directory_that_is_not_there_is_a_store_that_fails(tmp_path: Path) -> None:
    for path in (tmp_path / "shop" / "locks.sqlite3", tmp_path / "locks.sqlite3"):
        with override_settings(**alias(LOCATION=f"sqlite:///{path}")):
            fails = path.parent != tmp_path
            assert [*found(check_store)] == ["lockkit.E010"] * fails
            assert [*tmp_path.iterdir()] == []


def test_a_store_that_answers_and_one_that_evicts(redis_server: RedisServer) -> None:
    with override_settings(LOCKKIT={"default": redis_server.url}), redis_server.client() as admin:
        assert found(check_store) == {}
        admin.config_set("maxmemory-policy", "allkeys-lru")
        try:
            message = found(check_store)["lockkit.W010"]
            assert "evicts" in message.msg
            assert "noeviction" in message.hint
            assert shown_until_silenced("lockkit.W010", "--deploy")
        finally:
            admin.config_set("maxmemory-policy", "noeviction")
        assert found(check_store) == {}


def test_a_user_with_the_least_permissions_is_no_store_that_fails() -> None:
    with RedisServer(users={"shop": LEAST}) as server:
        entry = {"LOCATION": server.url_for("shop", "secret"), "KEY_PREFIX": "shop"}
        with override_settings(LOCKKIT={"default": entry}):
            messages = found(check_store)
            assert list(messages) == ["lockkit.W010"]
            assert "+info" in messages["lockkit.W010"].hint
            with server.client() as admin:
                admin.execute_command("ACL", "SETUSER", "shop", "+info")
            assert found(check_store) == {}
            locks["default"].close()


def test_the_least_permissions_are_those_of_the_documentation() -> None:
    documented = (ROOT / "docs/redis.md").read_text()
    assert f"user shop {LEAST.replace('secret', '…')}\n" in documented


@override_settings(LOCKKIT={"default": {"LOCATION": REDIS, "TLL": 1}})
def test_wrong_settings_do_not_break_the_check_of_the_store() -> None:
    assert found(check_store) == {}


@override_settings(MIDDLEWARE=[])
def test_locks_by_hand_without_their_middleware() -> None:
    assert "LockErrors" in str(found()["lockkit.I002"].hint)


@pytest.mark.parametrize(
    "path", ["lockkit_django.middleware.LockErrors", "orders_django.derived.OurErrors"]
)
def test_locks_by_hand_with_it_or_one_that_is_derived_from_it(path: str) -> None:
    with override_settings(MIDDLEWARE=[path], **alias()):
        assert found() == {}
