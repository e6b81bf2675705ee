"""Runs a flow in a task: the twin of ``driver``."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import TYPE_CHECKING, Any, TypeVar

from lockkit.engine import flow
from lockkit.model.clock import now
from lockkit.model.errors import BackendError

if TYPE_CHECKING:
    from lockkit.runtime.aio_watchdog import AsyncWatchdog
    from lockkit.stores.base import AsyncBackend

__all__ = ["drive", "to_its_end"]

R = TypeVar("R")


async def drive(
    steps: Generator[flow.Step, flow.Reply, R],
    backend: AsyncBackend,
    watchdog: AsyncWatchdog | None,
) -> R:
    """Run a flow to its end, awaiting each step. A cancellation is thrown into the flow.

    Also one that a driver swallowed: asyncio.wait_for does so on Python 3.11 when its result and
    the cancellation come at once.
    """
    heard = _cancellations()
    try:
        step = next(steps)
        while True:
            try:  # from the performing of a step to the next one, as in ``driver``
                sent = now()
                try:
                    value = await _perform(step, backend, watchdog)
                except BackendError as error:
                    value = error
                if _cancellations() > heard:
                    raise asyncio.CancelledError  # noqa: TRY301  as if it had come in time
                step = steps.send(flow.Reply(value, sent, now()))
            except StopIteration:
                raise
            except BaseException as interruption:  # noqa: BLE001  the flow raises it again
                heard = _cancellations()
                step = steps.throw(interruption)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def _cancellations() -> int:
    task = asyncio.current_task()
    return task.cancelling() if task else 0


async def _perform(step: flow.Step, backend: AsyncBackend, watchdog: AsyncWatchdog | None) -> Any:
    if isinstance(step, flow.Abandon):
        if watchdog is not None:
            watchdog.withdraw_later(step.request)
        return None
    awaitable = getattr(backend, flow.METHODS[type(step)])(*step)
    if isinstance(step, (flow.Free, flow.Withdraw)):
        return await to_its_end(awaitable)
    return await awaitable


_finishing: set[asyncio.Task[Any]] = set()


async def to_its_end(step: Coroutine[Any, Any, R]) -> R:
    """Await a step that must be carried out even if its task is cancelled meanwhile."""
    task = asyncio.ensure_future(step)
    _finishing.add(task)  # the loop itself keeps only a weak reference
    task.add_done_callback(_finishing.discard)
    return await asyncio.shield(task)
