"""Runs a flow with blocking calls: what is not in the flow is the calling of the store."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, TypeVar

from lockkit.engine import flow
from lockkit.model.clock import now
from lockkit.model.errors import BackendError

if TYPE_CHECKING:
    from lockkit.runtime.watchdog import Watchdog
    from lockkit.stores.base import Backend

__all__ = ["drive"]

R = TypeVar("R")


def drive(
    steps: Generator[flow.Step, flow.Reply, R],
    backend: Backend,
    watchdog: Watchdog | None,
) -> R:
    """Run a flow to its end with blocking calls.

    Whatever interrupts a step is thrown into the flow, which cleans up with further steps.
    """
    try:
        step = next(steps)
        while True:
            try:  # from the performing of a step to the next one: an interrupt may come anywhere
                sent = now()
                try:
                    value = _perform(step, backend, watchdog)
                except BackendError as error:
                    value = error
                step = steps.send(flow.Reply(value, sent, now()))
            except StopIteration:
                raise
            except BaseException as interruption:  # noqa: BLE001  the flow raises it again
                step = steps.throw(interruption)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def _perform(step: flow.Step, backend: Backend, watchdog: Watchdog | None) -> Any:
    if isinstance(step, flow.Abandon):
        if watchdog is not None:
            watchdog.withdraw_later(step.request)
        return None
    return getattr(backend, flow.METHODS[type(step)])(*step)
