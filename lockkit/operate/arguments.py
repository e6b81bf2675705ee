"""The command line: which command it is, and its options."""

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
    command, rest = _split_command(list(argv))
    parser = _Parser(command, prog)
    end = _program_at(rest) if command == "run" else len(rest)
    arguments = parser.parse_args(rest[:end])
    arguments.command = command
    arguments.program = rest[end + (rest[end : end + 1] == ["--"]) :]
    if command == "run" and not arguments.program:
        parser.error("say what to run after the name")
    return arguments


def taken_out(
    parser: argparse.ArgumentParser, argv: list[str], namespace: argparse.Namespace | None = None
) -> tuple[argparse.Namespace, list[str]]:
    """The options of this parser, wherever they stand, and the rest: they end at ``--``, and at
    ``run``, after which come the options of a program."""
    end = argv.index("--") if "--" in argv else len(argv)
    if "run" in argv[:end]:
        at = argv.index("run")
        _, before = parser.parse_known_args(argv[:at])
        end = end if before else at
    found, rest = parser.parse_known_args(argv[:end], namespace)
    return found, [*rest, *argv[end:]]


def _program_at(words: list[str]) -> int:
    """The position of the second word, or of ``--``. Each option of ``run`` has a value."""
    found, left = 0, iter(enumerate(words))
    for position, text in left:
        if text == "--":
            return position
        if not text.startswith("-"):
            found += 1
            if found > 1:
                return position
        elif "=" not in text and text not in ("-h", "--help"):
            next(left, None)
    return len(words)


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

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, self.format_usage())

    def print_help(self, file: object = None) -> NoReturn:
        raise HelpAsked(self.format_help())


def _split_command(argv: list[str]) -> tuple[str, list[str]]:
    """The command comes first; without one it is ``list``."""
    if not argv or argv[0].startswith("-"):
        return "list", argv
    word = argv[0]
    if word in COMMANDS:
        return word, argv[1:]
    close = difflib.get_close_matches(word, COMMANDS, n=1)
    hint = f"did you mean {close[0]}?" if close else f"did you mean: show {word}"
    raise UsageError(f"there is no command {word!r}; {hint}")
