"""An interrupt while a lease is handed to its block, and a store that is down just then."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

import pytest

import lockkit
from lockkit import BackendUnavailable, aio
from lockkit.engine.effects import Step


def break_down(monkeypatch: pytest.MonkeyPatch, store: Any, error: type[BaseException]) -> None:
    """From now on, entering a block is interrupted, and then the store refuses."""

    def refused(*_: object, **__: object) -> Step[NoReturn]:
        raise BackendUnavailable("it is down")
        yield

    def interrupted(*_: object) -> NoReturn:
        monkeypatch.setattr(store, "release", refused)
        raise error

    monkeypatch.setattr("lockkit.leases.blocks._enter", interrupted)


def test_the_interrupt_is_raised(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with lockkit.connect("memory://") as locks:
        break_down(monkeypatch, locks.store, KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt), locks.lock("stock:42"):
            pytest.fail("the block has begun")
        monkeypatch.undo()
    assert "release of 'stock:42' not confirmed: it is down" in caplog.text


async def test_the_cancellation_is_raised(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with aio.connect("memory://") as locks:
        break_down(monkeypatch, locks.store, asyncio.CancelledError)
        with pytest.raises(asyncio.CancelledError):
            async with locks.lock("stock:42"):
                pytest.fail("the block has begun")
        monkeypatch.undo()
    assert "release of 'stock:42' not confirmed: it is down" in caplog.text
