"""The answers of the nodes, and what follows from them.

A node answers with a number. 1 or more is a yes, which may be the ms that are left. Less is a no.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeGuard, TypeVar

from lockkit.engine.effects import Exchange, Gather, Step
from lockkit.model.errors import (
    BackendError,
    BackendUnavailable,
    LockError,
    OutcomeUnknown,
    StoreRefused,
)

R = TypeVar("R")

SILENT = "no answer in time"

Answers = list[R | LockError | None]
"""One answer of each node. None: it has not answered in time, or before there were enough answers.
"""


def together(
    steps: Sequence[Step[R] | None],
    within: float,
    enough: Callable[[Answers[R]], bool],
    *,
    is_last: bool = False,
) -> Step[Answers[R]]:
    """Perform a step for each node, all at once. None: that node is not asked. It ends when the
    answers are ``enough``, or after ``within`` seconds. ``is_last``: see ``Gather``."""
    answers: Answers[R] = [None] * len(steps)

    def react(lane: int, reply: Any) -> Exchange | None:
        step = steps[lane]
        assert step is not None
        try:
            effect = step.throw(reply) if isinstance(reply, Exception) else step.send(reply)
        except StopIteration as end:
            answers[lane] = end.value
        except LockError as error:
            answers[lane] = error
        else:
            assert isinstance(effect, Exchange)
            return effect._replace(route=lane)
        return None

    first = [None if step is None else react(lane, None) for lane, step in enumerate(steps)]
    yield Gather(first, react, lambda: enough(answers), within, is_last)
    return answers


class Tally:
    """How many nodes say yes, and how many may still say it, or may have said it unheard."""

    def __init__(self, answers: Answers[int]) -> None:
        self._quorum = quorum_of(answers)
        self._silent = answers.count(None)
        self._failed = sum(isinstance(answer, LockError) for answer in answers)
        self._yes = sum(map(is_yes, answers))
        self._no = len(answers) - self._yes - self._silent - self._failed

    @property
    def is_won(self) -> bool:
        return self._yes >= self._quorum

    @property
    def is_lost(self) -> bool:
        """Whether most nodes have said no, so that the others no longer matter."""
        return self._no >= self._quorum

    @property
    def is_certain(self) -> bool:
        """Whether it is won or lost, whatever the silent and the failed nodes would say."""
        return self.is_won or self._yes + self._silent + self._failed < self._quorum


def is_yes(answer: object) -> TypeGuard[int]:
    return isinstance(answer, int) and answer > 0


def quorum_of(nodes: Sequence[object]) -> int:
    return len(nodes) // 2 + 1


def are_too_few(answers: Answers[Any]) -> bool:
    """Whether so many nodes have failed that the others are not a majority. Silent nodes count as
    failed."""
    failed = sum(answer is None or isinstance(answer, LockError) for answer in answers)
    return failed > len(answers) - quorum_of(answers)


def failure(answers: Answers[Any], servers: Sequence[str]) -> BackendError:
    """The error to raise if too few nodes have answered."""
    failed = {
        server: answer
        for server, answer in zip(servers, answers, strict=True)
        if answer is None or isinstance(answer, LockError)
    }
    text = "; ".join(f"{server}: {reason(server, error)}" for server, error in failed.items())
    found = _kind(answers)(f"{len(failed)} of {len(servers)} nodes do not vote: {text}")
    errors = [error for error in failed.values() if error is not None]
    found.__cause__ = errors[0].__cause__ or errors[0] if errors else TimeoutError(SILENT)
    return found


def reason(server: str, error: LockError | None) -> str:
    """Why a node does not vote. The error of a failed connection begins with the address of the
    node, which is left out."""
    return SILENT if error is None else str(error).removeprefix(f"{server}: ")


def _kind(answers: Answers[Any]) -> type[BackendError]:
    """If anything was applied anywhere, or may have been, the outcome is unknown."""
    if any(a is None or is_yes(a) or isinstance(a, OutcomeUnknown) for a in answers):
        return OutcomeUnknown
    errors = [answer for answer in answers if isinstance(answer, LockError)]
    if all(isinstance(error, StoreRefused) for error in errors):
        return StoreRefused
    return BackendUnavailable
