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
import gc
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, Self

import lockkit
import lockkit_django

__all__ = ["Interrupt", "Interrupting", "TimeLimit", "watched"]

OURS = tuple(f"{Path(package.__file__).parent}/" for package in (lockkit, lockkit_django))
STOOD_ON = {threading.__file__, contextlib.__file__}
"""Modules of the standard library in Python: our code that calls them is interrupted there, too."""

CALLS = {dis.opmap[name] for name in ("CALL", "CALL_KW", "CALL_FUNCTION_EX") if name in dis.opmap}
TURNS = dis.opmap["JUMP_BACKWARD"]
RESUMES = dis.opmap["RESUME"]
LOOKS = {0, 1}
"""At the beginning, and after a ``yield``; not within ``yield from`` or ``await``."""

NOWHERE = -1


class Interrupt(BaseException):
    """What the handler raises."""


class TimeLimit(Exception):
    """What a handler raises that ends a task, such as Celery's SoftTimeLimitExceeded."""


class Interrupting:
    """``with Interrupting(n):`` raises in the n-th such place, counted from 1, that this thread
    or task comes to in lockkit's code, and in what that calls of ``STOOD_ON``.
    Each chain of calls counts once: the next turn of a loop is not another place.
    ``below``: only places in a file with this in its path, or in what such a file calls.
    ``do``: is called there instead, as the garbage collector calls finalizers, and all goes on.
    ``kind``: what is raised."""

    def __init__(
        self,
        at: int,
        below: str = "",
        do: Callable[[], object] | None = None,
        kind: type[BaseException] = Interrupt,
    ) -> None:
        self._at = at
        self._kind = kind
        self._do = do
        self._below = below
        self._ways: set[tuple[int, ...]] = set()
        self.places = 0
        self.where = ""  #: where it was raised; empty if the block ended before
        self._task: asyncio.Task[Any] | None = None

    def __enter__(self) -> Self:
        with contextlib.suppress(RuntimeError):
            self._task = asyncio.current_task()
        gc.disable()  # it would close forgotten generators, and CPython only prints what they raise
        self._thread = threading.get_ident()
        self._outside = sys._getframe(1)
        self._watched = watched()
        self._watched.__enter__()
        _begin(self._below, self._each, self._last)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """The interrupt ends here. Part of the test is that it came so far."""
        _end()
        self._watched.__exit__(None, None, None)
        gc.enable()
        del self._outside
        if self.where and self._do is None:
            assert kind is self._kind, f"interrupted at {self.where}: {error!r}"
        return kind is self._kind

    def _each(self, frame: FrameType, before: int, here: int) -> None:
        """Between two instructions, at the first of which CPython may look for signals."""
        handlers = _instructions(frame.f_code).handlers
        if (
            not self._is_elsewhere()
            and handlers[before] == handlers[here]
            and self._is_place(frame)
        ):
            self._look(frame)

    def _last(self, frame: FrameType) -> None:
        """At the end of a call of a function in C that is the last of a ``try``."""
        if not self._is_elsewhere() and self._is_place(frame):
            self._look(frame)

    def _is_elsewhere(self) -> bool:
        if threading.get_ident() != self._thread:
            return True
        return self._task is not None and asyncio.current_task() is not self._task

    def _is_place(self, frame: FrameType) -> bool:
        if not _is_below(self._below, frame):
            return False
        way: list[int] = []
        at: FrameType | None = frame
        while at is not None and at is not self._outside:
            way += id(at.f_code), at.f_lasti
            at = at.f_back
        before = len(self._ways)
        self._ways.add(tuple(way))
        return len(self._ways) > before

    def _look(self, frame: FrameType) -> None:
        self.places += 1
        if self.places == self._at:
            code = frame.f_code
            self.where = f"{code.co_filename}:{frame.f_lineno}, in {code.co_qualname}"
            _end()
            if self._do is None:
                raise self._kind
            self._do()


Each = Callable[[FrameType, int, int], None]
Last = Callable[[FrameType], None]

if sys.version_info >= (3, 12):
    # settrace does not tell of every instruction: on 3.13 not of those in frames that are open.
    TOOL = sys.monitoring.DEBUGGER_ID
    EVENTS = sys.monitoring.events

    @contextlib.contextmanager
    def watched() -> Iterator[None]:
        """Many runs, of which each is interrupted: our code is made ready for them once."""
        if sys.monitoring.get_tool(TOOL):
            yield
            return
        found: list[CodeType] = []

        def starts(code: CodeType, _: int) -> object:
            is_new = not sys.monitoring.get_local_events(TOOL, code)
            if is_new and code.co_filename.startswith((*OURS, *STOOD_ON)):
                found.append(code)
                sys.monitoring.set_local_events(TOOL, code, EVENTS.INSTRUCTION | EVENTS.CALL)
            return sys.monitoring.DISABLE

        sys.monitoring.use_tool_id(TOOL, "interrupts")
        sys.monitoring.register_callback(TOOL, EVENTS.PY_START, starts)
        sys.monitoring.register_callback(TOOL, EVENTS.PY_RESUME, starts)
        sys.monitoring.restart_events()  # of what was disabled when it was watched before
        sys.monitoring.set_events(TOOL, EVENTS.PY_START | EVENTS.PY_RESUME)
        try:
            yield
        finally:
            sys.monitoring.set_events(TOOL, EVENTS.NO_EVENTS)
            for code in found:
                sys.monitoring.set_local_events(TOOL, code, EVENTS.NO_EVENTS)
            sys.monitoring.register_callback(TOOL, EVENTS.PY_START, None)
            sys.monitoring.register_callback(TOOL, EVENTS.PY_RESUME, None)
            sys.monitoring.free_tool_id(TOOL)

    def _begin(_: str, each: Each, last: Last) -> None:
        done: dict[int, tuple[CodeType, int]] = {}  #: by the frame's id: its last instruction

        def before(code: CodeType, offset: int) -> object:
            instructions = _instructions(code)
            if offset not in instructions.matter:
                return sys.monitoring.DISABLE
            frame = sys._getframe(1)
            of, last = done.get(id(frame), (None, NOWHERE))
            done[id(frame)] = (code, offset)
            if of is not code:
                last = NOWHERE  # another frame had the id
            if offset - 2 in instructions.resumes:  # which some versions do not tell of
                last = offset - 2
            if last in instructions.may_look and _is_ours(frame):
                each(frame, last, offset)
            return None

        def returned(code: CodeType, offset: int, *_: object) -> None:
            if offset in _instructions(code).ends_a_try and _is_ours(frame := sys._getframe(1)):
                last(frame)

        sys.monitoring.register_callback(TOOL, EVENTS.INSTRUCTION, before)
        sys.monitoring.register_callback(TOOL, EVENTS.C_RETURN, returned)

    def _end() -> None:
        sys.monitoring.register_callback(TOOL, EVENTS.INSTRUCTION, None)
        sys.monitoring.register_callback(TOOL, EVENTS.C_RETURN, None)

else:

    @contextlib.contextmanager
    def watched() -> Iterator[None]:
        yield

    def _begin(below: str, each: Each, last: Last) -> None:
        def profile(frame: FrameType, event: str, _: object) -> None:
            if event == "c_return" and frame.f_code.co_filename.startswith((*OURS, *STOOD_ON)):
                instructions = _instructions(frame.f_code)
                if frame.f_lasti in instructions.ends_a_try and _is_ours(frame):
                    last(frame)

        def trace(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
            if event != "call" or not (_is_ours(frame) and _is_below(below, frame)):
                return None
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
            return _follow(each, _instructions(frame.f_code), frame.f_lasti)

        sys.settrace(trace)
        sys.setprofile(profile)

    def _follow(each: Each, instructions: Instructions, last: int) -> Callable[..., Any]:
        """A call, or a generator that goes on. It is told of each instruction: it must be fast."""
        may_look = instructions.may_look

        def trace(frame: FrameType, event: str, _: object) -> Callable[..., Any]:
            nonlocal last
            if event == "opcode":
                before, last = last, frame.f_lasti
                if before in may_look:
                    each(frame, before, last)
            return trace

        return trace

    def _end() -> None:
        sys.setprofile(None)
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


def _is_below(below: str, frame: FrameType | None) -> bool:
    """Whether a file with this in its path is there, or has called it."""
    while below and frame is not None:
        if below in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return not below


class Instructions:
    """Those of a code object, by their offsets."""

    def __init__(self, code: CodeType) -> None:
        found = [*dis.get_instructions(code)]
        table = dis.Bytecode(code).exception_entries
        calls = {i.offset for i in found if i.opcode in CALLS or i.opcode == TURNS}
        self.code = code  # which keeps it, and so its id is that of no other
        self.resumes = {i.offset: (i.arg or 0) & 3 for i in found if i.opcode == RESUMES}
        """Where it begins or goes on, and which of these it is."""
        self.may_look = calls | {at for at, kind in self.resumes.items() if kind in LOOKS}
        """After these CPython looks for signals."""
        self.handlers = {
            i.offset: [each.target for each in table if each.start <= i.offset < each.end]
            for i in found
        }
        """Where the exceptions of an instruction go."""
        pairs = [*itertools.pairwise(i.offset for i in found)]
        all_calls = {i.offset for i in found if i.opcode in CALLS}
        self.ends_a_try = {
            at
            for at, following in pairs
            if at in all_calls and self.handlers[at] != self.handlers[following]
        }
        """The calls after which others handle what is raised."""
        self.matter = self.may_look.union(
            (following for at, following in pairs if at in self.may_look),
            (i.argval for i in found if i.opcode == TURNS),
            (each.target for each in table),
        )
        """Those after which CPython looks for signals, and those that it may come to from there:
        the next one, the beginning of a loop, or a handler of exceptions."""


_known: dict[int, Instructions] = {}
"""By the id of the code: to hash code, CPython goes through all of it."""


def _instructions(code: CodeType) -> Instructions:
    known = _known.get(id(code))
    if known is None:
        known = _known[id(code)] = Instructions(code)
    return known
