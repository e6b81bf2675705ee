"""``lockkit_django.locked``: tasks and commands hold the same locks as views."""

from __future__ import annotations

import asyncio

import pytest
from django.db import transaction
from django.test import override_settings

import lockkit
from lockkit.model.errors import ConfigurationError, LockHeld
from lockkit_django import OpenTransaction, alocks, locked, locks


@locked("stock:{sku}", timeout=0)
def count(sku: str) -> list[str]:
    return [info.name for info in locks["default"].holders()]


@locked("stock:{sku}", timeout=0)
async def acount(sku: str) -> list[str]:
    return [info.name async for info in alocks["default"].holders()]


@override_settings(LOCKKIT={"default": "memory://tasks"})
def test_a_task_and_a_view_use_one_name() -> None:
    assert count("A:1") == asyncio.run(acount("A:1")) == ["stock:A%3A1"]
    with locks["default"].lock(lockkit.name("stock:{sku}", sku="A:1")).acquire():
        for task in (count, lambda sku: asyncio.run(acount(sku))):
            with pytest.raises(LockHeld):
                task("A:1")


@pytest.mark.django_db(transaction=True)
def test_it_refuses_an_open_transaction() -> None:
    with transaction.atomic():
        with pytest.raises(OpenTransaction):
            count("a")
        assert locked("stock:{sku}", in_atomic="allow")(lambda sku: sku)("a") == "a"


def test_aliases() -> None:
    with override_settings(LOCKKIT={"default": "memory://", "slow": "memory://"}):

        @locked("x", alias="slow", timeout=0)
        def slow() -> list[int]:
            return [len([*locks[alias].holders()]) for alias in ("default", "slow")]

        assert slow() == [0, 1]
        with pytest.raises(ConfigurationError, match="'fast'"):
            locked("x", alias="fast")(slow)()
