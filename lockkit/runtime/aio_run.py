"""Performs steps in a task, as ``run`` does with blocking calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from lockkit.engine.effects import Effect, Exchange, Gather, Later, Listen, Park, Step
from lockkit.model.types import Request
from lockkit.runtime import process
from lockkit.runtime.run import forget, has_ended

if TYPE_CHECKING:
    from lockkit.stores.wires import AsyncWire

R = TypeVar("R")


async def arun(  # noqa: C901  as ``run``
    step: Step[R],
    wire: AsyncWire,
    later: Callable[[Request, float], object] = forget,
    errors: list[BaseException] | None = None,
) -> R:
    """Perform a step to its end, awaiting each effect. A cancellation is thrown into the step.

    This includes a cancellation that a driver has swallowed: asyncio.wait_for swallows it on Python
    3.11 if its result and the cancellation come together. For the arguments see ``run``.
    """
    process.notice_fork()  # as in ``run``
    reply: Any = None
    thrown = errors or []
    task = asyncio.current_task()
    cancelling = task.cancelling if task else lambda: 0  # without a task nothing is cancelled
    heard = cancelling()
    try:
        while True:
            try:
                effect = step.throw(thrown.pop()) if thrown else step.send(reply)
                if type(effect) is Exchange:
                    reply = await wire.exchange(effect)
                else:
                    reply = await _arare(effect, wire, later)
                if cancelling() > heard:
                    raise asyncio.CancelledError  # noqa: TRY301  as if it had come in time
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            except BaseException as failure:
                if has_ended(step):
                    raise
                heard = cancelling()
                thrown.append(failure)
    except BaseException as interruption:  # as in ``run``
        if has_ended(step):
            raise
        return await arun(step, wire, later, [interruption])


async def _arare(effect: Effect, wire: AsyncWire, later: Callable[[Request, float], object]) -> Any:
    if isinstance(effect, Park):
        await wire.park(effect)
    elif isinstance(effect, Later):
        later(effect.request, effect.until)
    elif isinstance(effect, Listen):
        await wire.listen(effect)
    elif isinstance(effect, Gather):
        await wire.gather(effect)  # type: ignore[attr-defined]  # its store asks for it


_going_on: set[asyncio.Task[Any]] = set()


async def carried_on(work: Coroutine[Any, Any, R]) -> R:
    """Await work. If the task is cancelled, the work goes on in the background without it."""
    task = asyncio.ensure_future(work)
    _going_on.add(task)  # the loop itself keeps only a weak reference
    task.add_done_callback(_going_on.discard)
    return await asyncio.shield(task)


async def to_its_end(work: Coroutine[Any, Any, R]) -> R:
    """Await work to its end, even if the calling task is cancelled, however often. Only then raise
    CancelledError.

    Use it if the loop, or the thread that does the work, may end with the calling task.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return task.result()
