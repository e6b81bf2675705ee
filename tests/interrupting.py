"""An interrupt as the handler of a signal raises it, in each place in which CPython can do so.

CPython runs the handlers of signals between two instructions, and looks for them only after a call,
where a function begins or a generator goes on after its ``yield``, and where a loop turns back.
So nothing comes between the lines of ``a = 1; b = 2``, between the end of a ``try`` and the first
call of its ``finally``, or between the body of a ``with`` and the ``__exit__`` of a lock, which is
written in C. It does come between ``mutex.acquire()`` and the ``try:`` below it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dis
import functools
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, Self

import lockkit
import lockkit_django

__all__ = ["Interrupt", "Interrupting"]

OURS = tuple(f"{Path(package.__file__).parent}/" for package in (lockkit, lockkit_django))
STOOD_ON = {threading.__file__, contextlib.__file__}
"""Modules of the standard library in Python: what stands on them is interrupted in them as well."""

CALLS = {dis.opmap[name] for name in ("CALL", "CALL_KW", "CALL_FUNCTION_EX") if name in dis.opmap}
TURNS = dis.opmap["JUMP_BACKWARD"]
RESUMES = dis.opmap["RESUME"]
BEGINS, AFTER_YIELD = 0, 1


class Interrupt(BaseException):
    """What the handler raises."""


class Interrupting:
    """``with Interrupting(n):`` raises in the n-th such place, counted from 1, that this thread
    comes to, or this task; in code of lockkit's, and in what that calls of ``STOOD_ON``."""

    def __init__(self, at: int) -> None:
        self._at = at
        self.places = 0
        self.where = ""  #: it was raised; empty if the block ended before
        self._task: asyncio.Task[Any] | None = None

    def __enter__(self) -> Self:
        with contextlib.suppress(RuntimeError):
            self._task = asyncio.current_task()
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """The interrupt ends here; that it came so far is part of what is tested."""
        sys.settrace(self._before)
        if self.where:
            assert kind is Interrupt, f"interrupted at {self.where}: {error!r}"
        return kind is Interrupt

    def _trace(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:
        if not _is_ours(frame) or self._is_elsewhere():
            return None
        frame.f_trace_opcodes = True
        code, before = frame.f_code, frame.f_lasti

        def each(frame: FrameType, event: str, arg: object) -> Callable[..., Any]:
            nonlocal before
            if event == "opcode":
                here = frame.f_lasti
                if _looks(code, before) and _handlers(code, before) == _handlers(code, here):
                    self._look(frame)
                before = here
            return each

        return each

    def _is_elsewhere(self) -> bool:
        return self._task is not None and asyncio.current_task() is not self._task

    def _look(self, frame: FrameType) -> None:
        self.places += 1
        if self.places == self._at:
            code = frame.f_code
            self.where = f"{code.co_filename}:{frame.f_lineno}, in {code.co_qualname}"
            sys.settrace(None)
            raise Interrupt


def _is_ours(frame: FrameType | None) -> bool:
    """Not in a finalizer: CPython prints what that raises, and goes on."""
    while frame is not None and frame.f_code.co_filename in STOOD_ON:
        frame = frame.f_back
    ours = False
    while frame is not None and frame.f_code.co_filename.startswith(OURS):
        if frame.f_code.co_name == "__del__":
            return False
        ours, frame = True, frame.f_back
    return ours


def _looks(code: CodeType, offset: int) -> bool:
    """Whether CPython looks for signals once the instruction there is done."""
    if offset < 0:
        return False
    instruction, argument = code.co_code[offset], code.co_code[offset + 1]
    if instruction == RESUMES:
        return argument & 3 in (BEGINS, AFTER_YIELD)
    return instruction in CALLS or instruction == TURNS


def _handlers(code: CodeType, offset: int) -> list[int]:
    """Where the exceptions of an instruction go."""
    return [target for start, end, target in _exception_table(code) if start <= offset < end]


@functools.cache
def _exception_table(code: CodeType) -> list[tuple[int, int, int]]:
    entries = dis.Bytecode(code).exception_entries
    return [(entry.start, entry.end, entry.target) for entry in entries]
