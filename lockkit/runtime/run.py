"""Performs steps with blocking calls; see ``engine.effects``."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from lockkit.engine.effects import Effect, Exchange, Gather, Later, Listen, Park, Step
from lockkit.model.log import log
from lockkit.model.types import Request
from lockkit.runtime import process

if TYPE_CHECKING:
    from lockkit.stores.wires import Wire

R = TypeVar("R")


def forget(_request: Request, _until: float) -> None:
    """A ``later`` that does nothing, for callers that try again by themselves."""


def run(
    step: Step[R],
    wire: Wire,
    later: Callable[[Request, float], object] = forget,
    errors: list[BaseException] | None = None,
) -> R:
    """Perform a step to its end with blocking calls. ``later`` performs a ``Later``: it gets the
    request, and until when to try. The error in ``errors``, if any, is thrown into the step first.

    An error that ends an effect is thrown into the step, which cleans up with further effects. So
    is an interrupt between any two lines, unless the step has ended.
    """
    process.notice_fork()  # else the child of a fork made in C would use its parent's sockets
    reply: Any = None
    thrown = errors or []  # popped before they are raised: see ``engine.effects``
    try:
        while True:
            try:
                effect = step.throw(thrown.pop()) if thrown else step.send(reply)
                if type(effect) is Exchange:
                    reply = wire.exchange(effect)
                else:
                    reply = _rare(effect, wire, later)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            except BaseException as failure:
                if has_ended(step):
                    raise
                thrown.append(failure)
    except BaseException as interruption:  # in a handler above, or between two rounds of the loop
        if has_ended(step):
            raise
        return run(step, wire, later, [interruption])


@cache
def _warn_of_loop() -> None:
    """Warn once in the life of the process."""
    log.warning(
        "a blocking call of lockkit waits in a thread that runs an event loop, so all its tasks "
        "stand still: in a coroutine use lockkit.aio, or alocks of an adapter"
    )


def has_ended(step: Step[Any]) -> bool:
    return step.gi_frame is None  # type: ignore[attr-defined]  # all of them are generators


def _rare(effect: Effect, wire: Wire, later: Callable[[Request, float], object]) -> Any:
    if isinstance(effect, Park):
        if process.runs_a_loop():
            _warn_of_loop()
        wire.park(effect)
    elif isinstance(effect, Later):
        later(effect.request, effect.until)
    elif isinstance(effect, Listen):
        wire.listen(effect)
    elif isinstance(effect, Gather):
        wire.gather(effect)  # type: ignore[attr-defined]  # its store asks for it
