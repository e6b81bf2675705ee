"""The command line: which command it is, its options, and where a program's arguments begin."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from typing import NoReturn

from lockkit.operate.console import UsageError
from lockkit.operate.options import COMMANDS

EPILOG = """\
commands:
{commands}

exit status:
  0 done  1 error  2 usage  3 stuck found (--fail-on-stuck)  69 a store is down
  75 not acquired (run)  130 interrupted
"""


class HelpAsked(Exception):
    """Not an error: the user asked for help. The message is the help."""


def parse(argv: Sequence[str], prog: str) -> argparse.Namespace:
    """Raises UsageError or HelpAsked; prints nothing and never exits."""
    command, rest = _split_command(argv)
    parser = _Parser(command, prog)
    end = _program(rest) if command == "run" else len(rest)
    arguments = parser.parse_args(rest[:end])
    arguments.command = command
    arguments.program = rest[end + (rest[end : end + 1] == ["--"]) :]
    if command == "run" and not arguments.program:
        parser.error("say what to run after the name")
    return arguments


class _Parser(argparse.ArgumentParser):
    """A parser that raises, and does not write to the process's streams or end the process."""

    def __init__(self, command: str, prog: str = "") -> None:
        lines = "\n".join(f"  {name:9}{text}" for name, (text, _) in COMMANDS.items())
        listing = command == "list"
        text, add_options = COMMANDS[command]
        super().__init__(
            prog=prog if listing else f"{prog} {command}",
            description=f"{text.capitalize()}.",
            epilog=EPILOG.format(commands=lines) if listing else None,
            formatter_class=argparse.RawDescriptionHelpFormatter
            if listing
            else argparse.HelpFormatter,
            allow_abbrev=False,
        )
        add_options(self)

    def options(self) -> list[argparse.Action]:
        return [each for each in self._actions if each.option_strings and each.dest != "help"]

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, self.format_usage())

    def print_help(self, file: object = None) -> NoReturn:
        raise HelpAsked(self.format_help())


def _split_command(argv: Sequence[str]) -> tuple[str, list[str]]:
    """The command may stand after options; without one it is ``list``."""
    rest = list(argv)
    position = first_word(rest)
    if position is None:
        return "list", rest
    word = rest.pop(position)
    if word in COMMANDS:
        return word, rest
    close = difflib.get_close_matches(word, COMMANDS, n=1)
    hint = f"did you mean {close[0]}?" if close else f"did you mean: show {word}"
    raise UsageError(f"there is no command {word!r}; {hint}")


def first_word(rest: Sequence[str], also: Sequence[str] = ()) -> int | None:
    """The position of the first argument that is neither an option nor the value of one.
    ``also``: other options that have a value."""
    value_follows = False
    for position, text in enumerate(rest):
        if value_follows:
            value_follows = False
        elif text == "--":
            return None
        elif not text.startswith("-"):
            return position
        else:
            value_follows = text in WITH_VALUE or text in also
    return None


def is_run(argv: Sequence[str]) -> bool:
    """Whether the command is ``run``, and not a lock of that name."""
    first = first_word(argv)
    return first is not None and argv[first] == "run"


def program_at(argv: Sequence[str], also: Sequence[str] = ()) -> int:
    """The position at which the arguments of ``locks run``'s program begin; otherwise the end.
    ``also``: other options that have a value."""
    first = first_word(argv, also)
    if first is None or argv[first] != "run":
        return _end(argv)
    return first + 1 + _program(argv[first + 1 :], also)


def _program(rest: Sequence[str], also: Sequence[str] = ()) -> int:
    """The position of the program, or of the ``--`` before it; otherwise the end."""
    end = _end(rest)
    name = first_word(rest[:end], also)
    program = None if name is None else first_word(rest[name + 1 : end], also)
    return end if name is None or program is None else name + 1 + program


def _end(words: Sequence[str]) -> int:
    return words.index("--") if "--" in words else len(words)


_EVERY = [option for command in COMMANDS for option in _Parser(command).options()]
OPTIONS = tuple(dict.fromkeys(option.dest for option in _EVERY))
"""The options of all commands, as Python spells them."""

WITH_VALUE = frozenset(text for each in _EVERY if each.nargs != 0 for text in each.option_strings)
