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
        self._before: dict[int, tuple[CodeType, int]] = {}  #: by the frame's id: what it has done
        self.places = 0
        self.where = ""  #: it was raised; empty if the block ended before
        self._task: asyncio.Task[Any] | None = None

    def __enter__(self) -> Self:
        with contextlib.suppress(RuntimeError):
            self._task = asyncio.current_task()
        self._thread = threading.get_ident()
        _begin(self._each)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """The interrupt ends here; that it came so far is part of what is tested."""
        _end()
        if self.where:
            assert kind is Interrupt, f"interrupted at {self.where}: {error!r}"
        return kind is Interrupt

    def _each(self, frame: FrameType, here: int) -> None:
        """Before each instruction."""
        code = frame.f_code
        if here <= _begins(code) or self._is_elsewhere():
            return
        of, before = self._before.get(id(frame), (None, 0))
        self._before[id(frame)] = (code, here)
        if _bytes(code)[here - 2] == RESUMES:  # which some versions do not tell of
            before = here - 2
        elif of is not code:
            return  # another frame had the id
        if _looks(code, before, here) and _is_ours(frame):
            self._look(frame)

    def _is_elsewhere(self) -> bool:
        if threading.get_ident() != self._thread:
            return True
        return self._task is not None and asyncio.current_task() is not self._task

    def _look(self, frame: FrameType) -> None:
        self.places += 1
        if self.places == self._at:
            code = frame.f_code
            self.where = f"{code.co_filename}:{frame.f_lineno}, in {code.co_qualname}"
            _end()
            raise Interrupt


if sys.version_info >= (3, 12):
    # settrace does not tell of every instruction: on 3.13 not of those in frames that are open.
    TOOL = sys.monitoring.DEBUGGER_ID

    def _begin(each: Callable[[FrameType, int], None]) -> None:
        def before(code: CodeType, offset: int) -> object:
            if not code.co_filename.startswith(OURS) and code.co_filename not in STOOD_ON:
                return sys.monitoring.DISABLE
            return each(sys._getframe(1), offset)

        sys.monitoring.use_tool_id(TOOL, "interrupts")
        sys.monitoring.register_callback(TOOL, sys.monitoring.events.INSTRUCTION, before)
        sys.monitoring.set_events(TOOL, sys.monitoring.events.INSTRUCTION)

    def _end() -> None:
        if sys.monitoring.get_tool(TOOL) is not None:
            sys.monitoring.set_events(TOOL, sys.monitoring.events.NO_EVENTS)
            sys.monitoring.register_callback(TOOL, sys.monitoring.events.INSTRUCTION, None)
            sys.monitoring.free_tool_id(TOOL)

else:

    def _begin(each: Callable[[FrameType, int], None]) -> None:
        def trace(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
            if event == "opcode":
                each(frame, frame.f_lasti)
            elif event == "call":
                frame.f_trace_opcodes = _is_ours(frame)
                return trace if frame.f_trace_opcodes else None
            return trace

        sys.settrace(trace)

    def _end() -> None:
        sys.settrace(None)


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


def _looks(code: CodeType, before: int, here: int) -> bool:
    """Whether CPython looks for signals once the one instruction is done, and the other is next."""
    instruction, argument = _bytes(code)[before : before + 2]
    if instruction == RESUMES:
        is_place = argument & 3 in (BEGINS, AFTER_YIELD)
    else:
        is_place = instruction in CALLS or instruction == TURNS
    return is_place and _handlers(code, before) == _handlers(code, here)


def _handlers(code: CodeType, offset: int) -> list[int]:
    """Where the exceptions of an instruction go."""
    return [target for start, end, target in _exception_table(code) if start <= offset < end]


@functools.cache
def _begins(code: CodeType) -> int:
    """Where a call of it begins, and a generator that it makes."""
    return next(i.offset for i in dis.get_instructions(code) if i.opcode == RESUMES)


@functools.cache
def _bytes(code: CodeType) -> bytes:
    return code.co_code


@functools.cache
def _exception_table(code: CodeType) -> list[tuple[int, int, int]]:
    entries = dis.Bytecode(code).exception_entries
    return [(entry.start, entry.end, entry.target) for entry in entries]
