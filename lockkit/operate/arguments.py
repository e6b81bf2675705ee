"""The command line: the commands, the options of each, and how they are parsed."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

from lockkit.model.checks import LONGEST, nearest
from lockkit.model.names import check_name
from lockkit.model.settings import DEFAULT_ALIAS
from lockkit.model.types import UNSET
from lockkit.operate.console import UsageError
from lockkit.operate.formats import FORMATS
from lockkit.operate.text import seconds, unescape

T = TypeVar("T")
Parser = argparse.ArgumentParser

ORDER_KEY = r"[0-9a-f]{64}"
SHORTEST_INTERVAL = 0.1


def _shown(convert: Callable[[str], T]) -> Callable[[str], T]:
    """Have argparse show the text of a ValueError, as it does for its own error."""

    def converted(text: str) -> T:
        try:
            return convert(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return converted


@_shown
def _name(text: str) -> str:
    """The name. The text may have escapes, as names do where they are shown."""
    return check_name(unescape(text))


def _order_name(text: str) -> str:
    """The name of an order's lock, from that name as it is listed or from the order's key alone."""
    return f"order:{text}" if re.fullmatch(ORDER_KEY, text) else _name(text)


_duration = _shown(seconds)


def _duration_or_none(text: str) -> float | None:
    return None if text == "none" else _interval(text, 0)


def _interval(text: str, least: float = SHORTEST_INTERVAL) -> float:
    if _duration(text) < least:
        raise argparse.ArgumentTypeError(f"the shortest interval is {least} seconds")
    if _duration(text) > LONGEST:  # time.sleep and some stores refuse more
        raise argparse.ArgumentTypeError("the longest interval is 366 days")
    return _duration(text)


@_shown
def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{text!r} is not a number of 1 or more")
    return int(text)


@_shown
def _fence(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"{text!r} is not a fencing token")
    return int(text)


@_shown
def _pattern(text: str) -> str:
    if not text:  # an unset shell variable, for example
        raise ValueError("an empty pattern matches nothing")
    return text


FLAG: dict[str, Any] = {"action": "store_true"}
DURATION: dict[str, Any] = {"type": _duration, "metavar": "DURATION"}
COUNT: dict[str, Any] = {"type": _count, "metavar": "N"}
SEVERAL: dict[str, Any] = {"action": "append"}
GLOB: dict[str, Any] = {"type": _pattern, "metavar": "GLOB"}


def _list(parser: Parser) -> None:
    add = parser.add_argument
    _add_aliases(parser)
    add("--stuck", **FLAG, help="only what an operator should look at, and why")
    add("--older-than", **DURATION, help="only leases held longer (90, 5m, 2h); they are stuck")
    add("--waiting-longer-than", **DURATION, help="only names with longer waits; they are stuck")
    add("--lost", **FLAG, help="also the last words of leases that were not released")
    add("--match", **GLOB, help="only names like this, such as 'stock:*'")
    add("--owner", **GLOB, help="only owners whose host, host:pid or label is like this")
    add("--limit", **COUNT, help="at most N rows")
    add("--watch", type=_interval, metavar="SECONDS", help="again and again, until Ctrl-C")
    add("--fail-on-stuck", **FLAG, help="exit with 3 if a matching row is stuck")
    _add_format(parser)


def _show(parser: Parser) -> None:
    _add_name(parser)
    _add_aliases(parser)
    _add_format(parser)


def _release(parser: Parser) -> None:
    parser.description = (
        "Release exactly the lease that is shown, which somebody else holds. "
        "Its holder is not stopped: it learns of the release when it next renews."
    )
    _add_name(parser)
    add = parser.add_mutually_exclusive_group().add_argument
    add("--damaged", **FLAG, help="delete the record if it cannot be read")
    add("--missing-ttl", **FLAG, help="give it a TTL if it has none")
    _add_caution(parser, "release")


def _run(parser: Parser) -> None:
    parser.usage = "%(prog)s [options] NAME [--] PROGRAM [ARGUMENTS …]"
    parser.description = (
        "Hold a lock while a program runs, and exit with its status, or with 75 if the lock is not "
        "acquired in time. Signals are passed on. If the lease is lost, the program is terminated. "
        "The program finds its fencing token, if the store has them, in $LOCKKIT_FENCE."
    )
    _add_name(parser)
    add = parser.add_argument
    unset: dict[str, Any] = {**DURATION, "default": UNSET}
    unlimited = {**unset, "type": _duration_or_none}
    add("--alias", metavar="ALIAS", default=DEFAULT_ALIAS, help="the default is 'default'")
    add("--ttl", **unset, help="how long the lease lives without renewal")
    add("--timeout", **unset, help="how long to wait; 0 does not wait")
    add("--max-hold", **unlimited, help="how long it may run, or none; default: MAX_HOLD")


def _resolve(parser: Parser) -> None:
    parser.description = (
        "Say how an orphan ended. An orphan is an order that was begun and whose end is not known, "
        "while nobody holds its lock. This resolves exactly the orphan that is shown."
    )
    add = parser.add_argument
    add("name", type=_order_name, metavar="ORDER_KEY", help="its name, as it is listed")
    add = parser.add_mutually_exclusive_group(required=True).add_argument
    add("--done", **FLAG, help="it took effect: its duplicates are told so")
    add("--retry", **FLAG, help="it did not: the next request with its ID runs")
    _add_caution(parser, "resolve")


def _prune(parser: Parser) -> None:
    parser.description = (
        "Delete the expired records of orders, a few in each transaction. Records in Redis expire "
        "by themselves."
    )
    add = parser.add_argument
    add("--batch", **COUNT, default=1000, help="at most N in one transaction; default: 1000")
    which = "a Django database or a bind key; may be repeated. Default: those of the settings"
    add("--database", **SEVERAL, metavar="NAME", help=which)
    unreadable = "delete nothing but the record of this order, if it cannot be read"
    add("--unreadable", type=_order_name, metavar="ORDER_KEY", help=unreadable)
    _add_consent(parser, "delete", "why you delete it, for the log")


def _add_name(parser: Parser) -> None:
    parser.add_argument("name", type=_name, metavar="NAME", help="one exact name; not a pattern")


def _add_aliases(parser: Parser) -> None:
    parser.add_argument("--alias", **SEVERAL, metavar="ALIAS", help="only this; may be repeated")


def _add_format(parser: Parser) -> None:
    parser.add_argument("--format", choices=FORMATS, default="table", help="default: table")


def _add_caution(parser: Parser, what: str) -> None:
    """The options of commands that change something."""
    add = parser.add_argument
    add("--alias", metavar="ALIAS", help="needed if several aliases have the name")
    add("--fence", type=_fence, metavar="N", help=f"{what} only if this is its fencing token")
    _add_consent(parser, what, "why, for the log and the store")


def _add_consent(parser: Parser, what: str, why: str) -> None:
    add = parser.add_argument
    add("--reason", metavar="TEXT", help=why)
    add("--yes", **FLAG, help="do not ask; needed where there is no terminal")
    add("--dry-run", **FLAG, help=f"only show what it would {what}")


COMMANDS: dict[str, tuple[str, Callable[[Parser], None]]] = {
    "list": ("show what is held, abandoned, queued for or orphaned (the default)", _list),
    "show": ("show everything about one name", _show),
    "release": ("release a lease that somebody else holds", _release),
    "run": ("hold a lock while another program runs", _run),
    "resolve": ("say how an order ended, if that is not known", _resolve),
    "prune": ("delete the expired records of orders from the database", _prune),
    "ddl": ("print the SQL that makes the tables of locks", _add_aliases),
    "check": ("say what is wrong with settings, stores, routes and names (Flask)", lambda _: None),
}
"""For each command: its description, and the function that adds its options."""

EPILOG = """\
commands:
{commands}

exit status:
  0 done  1 error  2 usage  3 stuck found (--fail-on-stuck) or unreadable records left (prune)
  69 a store is down  75 not acquired (run)  130 interrupted
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
        text, add_options = COMMANDS[command]
        description = f"{text[0].upper()}{text[1:]}."
        super().__init__(f"{prog} {command}", description=description, allow_abbrev=False)
        if command == "list":
            self.prog, self.epilog = prog, EPILOG.format(commands=lines)
            self.formatter_class = argparse.RawDescriptionHelpFormatter
        add_options(self)

    def error(self, message: str) -> NoReturn:
        is_late = self.prog == "lockkit locks run" and "--url" in message
        hint = "; --url and --key-prefix stand before run" if is_late else ""
        raise UsageError(f"{message}{hint}", self.format_usage())

    def print_help(self, file: object = None) -> NoReturn:
        raise HelpAsked(self.format_help())


def _split_command(argv: list[str]) -> tuple[str, list[str]]:
    """The command comes first; without one it is ``list``."""
    if not argv or argv[0].startswith("-"):
        return "list", argv
    word = argv[0]
    if word in COMMANDS:
        return word, argv[1:]
    close = nearest(word, COMMANDS)
    others = f"did you mean: show {word}" if ":" in word else f"there are {', '.join(COMMANDS)}"
    hint = f"did you mean {close}?" if close else others
    raise UsageError(f"there is no command {word!r}; {hint}")


OPTIONS = tuple({a.dest for word in COMMANDS for a in _Parser(word)._actions if a.option_strings})
"""The Python names of all commands' options, such as ``older_than``."""
