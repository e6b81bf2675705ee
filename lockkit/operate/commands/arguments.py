"""The command line: which command, and its options."""

from __future__ import annotations

import argparse
import difflib
import math
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from lockkit.operate.commands import converters as to
from lockkit.operate.commands.exits import UsageError
from lockkit.operate.commands.splitting import OPTIONS, first_word, split_program
from lockkit.operate.commands.stores import SORTS

__all__ = ["COMMANDS", "FORMATS", "OPTIONS", "HelpAsked", "parse"]

FORMATS = ("table", "wide", "json", "jsonl", "csv")

COMMANDS = {
    "list": "show what is held, abandoned, queued for or orphaned (the default)",
    "show": "show all that is known of one name",
    "release": "release what somebody else holds",
    "run": "hold a lock while another program runs",
    "resolve": "say how an order ended that was begun and whose end is not known",
    "prune": "delete the expired records of orders from the database",
    "check": "say what is wrong with routes, names of locks and PATHS (Flask)",
}

EPILOG = """\
commands:
{commands}

exit status:
  0 done  1 error  2 usage  3 stuck found (--fail-on-stuck)  69 a store is down
  75 not acquired (run)  130 interrupted
"""


_FORMATTERS = {"list": argparse.RawDescriptionHelpFormatter}  # for its epilog


class HelpAsked(Exception):
    """Not an error: a wish, and its answer."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


def parse(argv: Sequence[str], prog: str) -> argparse.Namespace:
    """Raises UsageError or HelpAsked; prints nothing and never exits."""
    command, rest = _split_command(argv)
    parser = _Parser(prog if command == "list" else f"{prog} {command}", command)
    _ADD[command](parser)
    tail: Sequence[str] | None = None
    if command == "run":
        rest, tail = split_program(rest)
    arguments = parser.parse_args(rest)
    arguments.command = command
    if tail is not None:
        if not tail:
            parser.error("say what to run, after the name")
        arguments.program = list(tail)
    return arguments


class _Parser(argparse.ArgumentParser):
    """Raises instead of writing to the process's own streams and ending it."""

    def __init__(self, prog: str, command: str) -> None:
        lines = "\n".join(f"  {name:9}{text}" for name, text in COMMANDS.items())
        super().__init__(
            prog=prog,
            description=f"{COMMANDS[command].capitalize()}.",
            epilog=EPILOG.format(commands=lines) if command == "list" else None,
            formatter_class=_FORMATTERS.get(command, argparse.HelpFormatter),
            add_help=False,
            allow_abbrev=False,
        )
        self.add_argument("-h", "--help", action=_Help, nargs=0, help="show this")

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, self.format_usage())


class _Help(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> NoReturn:
        raise HelpAsked(parser.format_help())


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


def _add_list(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    _add_aliases(parser)
    add("--stuck", action="store_true", help="only what an operator should look at, and why")
    add(
        "--older-than",
        type=to.duration,
        metavar="DURATION",
        help="only what is held longer, such as 90, 5m or 2h; it counts as stuck. "
        "With --stuck: also what is stuck for another reason",
    )
    add(
        "--waiting-longer-than",
        type=to.duration,
        metavar="DURATION",
        help="only what somebody waits longer for; it counts as stuck, as with --older-than. "
        "Default: ten minutes, or the holder's maximum, count as stuck",
    )
    add("--lost", action="store_true", help="also the last words of leases that were not released")
    add("--match", metavar="GLOB", help="only names like this, such as 'stock:*'")
    add("--owner", metavar="GLOB", help="only owners whose host, host:pid or label is like this")
    add("--sort", choices=sorted(SORTS), help="default: as the stores deliver")
    add("--reverse", action="store_true", help="the other way round (with --sort)")
    add("--limit", type=to.count, metavar="N", help="at most N rows")
    _add_format(parser)
    add("--watch", type=to.interval, metavar="SECONDS", help="again and again, until Ctrl-C")
    add("--fail-on-stuck", action="store_true", help="exit with 3 when something stuck is shown")


def _add_show(parser: argparse.ArgumentParser) -> None:
    _add_name(parser)
    _add_aliases(parser)
    _add_format(parser)


def _add_release(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Release what somebody else holds: exactly the lease that is shown, and no other. "
        "Its holder is not stopped; it hears of it when it next renews."
    )
    _add_name(parser)
    _add_alias(parser, help="needed when the name is held in several")
    parser.add_argument(
        "--damaged",
        action="store_true",
        help="delete what is kept of the name, if it cannot be read; what can be read stays",
    )
    _add_caution(parser, "release")


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.usage = f"{parser.prog} [options] NAME [--] PROGRAM [ARGUMENTS …]"
    parser.description = (
        "Hold a lock while a program runs, and exit with its status; 75 if the lock is not had "
        "in time. Signals are passed on. If the lease is lost, the program is terminated. It finds "
        "the fencing token in $LOCKKIT_FENCE."
    )
    add = parser.add_argument
    _add_name(parser)
    _add_alias(parser, help="default: default")
    add("--ttl", type=to.duration, metavar="DURATION", help="a lease's life without renewal")
    add("--timeout", type=to.duration, metavar="DURATION", help="how long to wait; 0: not at all")
    add(
        "--max-hold",
        type=to.duration_or_none,
        default=math.nan,
        metavar="DURATION",
        help="how long it may run at most, or none; default: the alias's MAX_HOLD",
    )


def _add_resolve(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Say how an order ended that is an orphan: it was begun, nobody holds its lock, and its "
        "end is not known. Exactly the orphan that is shown, and no other."
    )
    add = parser.add_argument
    add("name", type=to.order_name, metavar="ORDER_KEY", help="the name that is listed")
    ended = parser.add_mutually_exclusive_group(required=True)
    ended.add_argument(
        "--done", action="store_true", help="it took effect: its duplicates hear that it did"
    )
    ended.add_argument(
        "--retry", action="store_true", help="it did not: the next request with its ID runs"
    )
    _add_alias(parser, help="needed when several have such an orphan")
    _add_caution(parser, "resolve")


def _add_prune(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Delete the records of orders whose time is over, a few in each transaction. Records in "
        "Redis expire by themselves."
    )
    add = parser.add_argument
    add("--batch", type=to.count, default=1000, metavar="N", help="in one transaction; 1000")
    add(
        "--database",
        action="append",
        metavar="NAME",
        help="a Django database or a bind key; may be repeated. Default: those of the settings",
    )


def _add_caution(parser: argparse.ArgumentParser, what: str) -> None:
    add = parser.add_argument
    add("--fence", type=to.fence, metavar="N", help=f"{what} only if this is its fencing token")
    add(
        "--reason", metavar="TEXT", help="why: it is kept with who did it, in the log and the store"
    )
    add("--yes", action="store_true", help="do not ask; needed where there is no terminal")
    add("--dry-run", action="store_true", help=f"only show what it would {what}")


_ADD: dict[str, Callable[[argparse.ArgumentParser], None]] = {
    "list": _add_list,
    "show": _add_show,
    "release": _add_release,
    "run": _add_run,
    "resolve": _add_resolve,
    "prune": _add_prune,
    "check": lambda _: None,
}


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", type=to.name, metavar="NAME", help="one exact name; not a pattern")


def _add_alias(parser: argparse.ArgumentParser, *, help: str) -> None:  # noqa: A002
    parser.add_argument("--alias", metavar="ALIAS", help=help)


def _add_aliases(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--alias", action="append", metavar="ALIAS", help="only this one; may be repeated"
    )


def _add_format(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", choices=FORMATS, default="table", help="default: table")
