"""The commands, and the options of each."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any, TypeVar

from lockkit.model.naming import check_name
from lockkit.model.types import UNSET
from lockkit.operate.formats import FORMATS
from lockkit.operate.listing import SORTS
from lockkit.operate.text import seconds, unescape

T = TypeVar("T")
Parser = argparse.ArgumentParser

ORDER_KEY = r"[0-9a-f]{64}"
SHORTEST_INTERVAL = 0.1


def _shown(convert: Callable[[str], T]) -> Callable[[str], T]:
    """Have argparse show the words of a ValueError: those of its own error it shows."""

    def converted(text: str) -> T:
        try:
            return convert(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return converted


@_shown
def _name(text: str) -> str:
    """As it is shown: with its escapes."""
    return check_name(unescape(text))


def _order_name(text: str) -> str:
    """The name of an order's lock, as it is listed; the key alone will do."""
    return f"order:{text}" if re.fullmatch(ORDER_KEY, text) else _name(text)


_duration = _shown(seconds)


def _duration_or_none(text: str) -> float | None:
    return None if text == "none" else _duration(text)


@_shown
def _interval(text: str) -> float:
    if seconds(text) < SHORTEST_INTERVAL:
        raise ValueError(f"{SHORTEST_INTERVAL} seconds is the shortest interval")
    return seconds(text)


@_shown
def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{text!r} is not a number, of 1 or more")
    return int(text)


@_shown
def _fence(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"{text!r} is not a fencing token")
    return int(text)


FLAG: dict[str, Any] = {"action": "store_true"}
DURATION: dict[str, Any] = {"type": _duration, "metavar": "DURATION"}
COUNT: dict[str, Any] = {"type": _count, "metavar": "N"}
SEVERAL: dict[str, Any] = {"action": "append"}


def _list(parser: Parser) -> None:
    add = parser.add_argument
    _add_aliases(parser)
    add("--stuck", **FLAG, help="only what an operator should look at, and why")
    add("--older-than", **DURATION, help="only what is held longer: 90, 5m, 2h. It counts as stuck")
    add("--waiting-longer-than", **DURATION, help="only what somebody waits longer for, likewise")
    add("--lost", **FLAG, help="also the last words of leases that were not released")
    add("--match", metavar="GLOB", help="only names like this, such as 'stock:*'")
    add("--owner", metavar="GLOB", help="only owners whose host, host:pid or label is like this")
    add("--sort", choices=sorted(SORTS), help="default: as the stores deliver")
    add("--reverse", **FLAG, help="the other way round (with --sort)")
    add("--limit", **COUNT, help="at most N rows")
    add("--watch", type=_interval, metavar="SECONDS", help="again and again, until Ctrl-C")
    add("--fail-on-stuck", **FLAG, help="exit with 3 when something stuck is shown")
    _add_format(parser)


def _show(parser: Parser) -> None:
    _add_name(parser)
    _add_aliases(parser)
    _add_format(parser)


def _release(parser: Parser) -> None:
    parser.description = (
        "Release what somebody else holds: exactly the lease that is shown, and no other. "
        "Its holder is not stopped; it hears of it when it next renews."
    )
    _add_name(parser)
    parser.add_argument("--damaged", **FLAG, help="delete what is kept of it, if it is unreadable")
    _add_caution(parser, "release")


def _run(parser: Parser) -> None:
    parser.usage = "%(prog)s [options] NAME [--] PROGRAM [ARGUMENTS …]"
    parser.description = (
        "Hold a lock while a program runs, and exit with its status; 75 if the lock is not had "
        "in time. Signals are passed on. If the lease is lost, the program is terminated. It finds "
        "the fencing token in $LOCKKIT_FENCE."
    )
    _add_name(parser)
    add = parser.add_argument
    unset: dict[str, Any] = {**DURATION, "default": UNSET}
    unlimited = {**unset, "type": _duration_or_none}
    add("--alias", metavar="ALIAS", help="default: default")
    add("--ttl", **unset, help="a lease's life without renewal")
    add("--timeout", **unset, help="how long to wait; 0: not at all")
    add("--max-hold", **unlimited, help="how long it may run, or none; default: MAX_HOLD")


def _resolve(parser: Parser) -> None:
    parser.description = (
        "Say how an order ended that is an orphan: it was begun, nobody holds its lock, and its "
        "end is not known. Exactly the orphan that is shown, and no other."
    )
    add = parser.add_argument
    add("name", type=_order_name, metavar="ORDER_KEY", help="the name that is listed")
    add = parser.add_mutually_exclusive_group(required=True).add_argument
    add("--done", **FLAG, help="it took effect: its duplicates hear that it did")
    add("--retry", **FLAG, help="it did not: the next request with its ID runs")
    _add_caution(parser, "resolve")


def _prune(parser: Parser) -> None:
    parser.description = (
        "Delete the records of orders whose time is over, a few in each transaction. Records in "
        "Redis expire by themselves."
    )
    add = parser.add_argument
    add("--batch", **COUNT, default=1000, help="in one transaction; 1000")
    which = "a Django database or a bind key; may be repeated. Default: those of the settings"
    add("--database", **SEVERAL, metavar="NAME", help=which)
    unreadable = "delete nothing but the record of this order, if it cannot be read"
    add("--unreadable", type=_order_name, metavar="ORDER_KEY", help=unreadable)


def _add_name(parser: Parser) -> None:
    parser.add_argument("name", type=_name, metavar="NAME", help="one exact name; not a pattern")


def _add_aliases(parser: Parser) -> None:
    parser.add_argument("--alias", **SEVERAL, metavar="ALIAS", help="only this; may be repeated")


def _add_format(parser: Parser) -> None:
    parser.add_argument("--format", choices=FORMATS, default="table", help="default: table")


def _add_caution(parser: Parser, what: str) -> None:
    """Of what changes something."""
    add = parser.add_argument
    add("--alias", metavar="ALIAS", help="needed when several have such a name")
    add("--fence", type=_fence, metavar="N", help=f"{what} only if this is its fencing token")
    add("--reason", metavar="TEXT", help="why: for the log and the store, with who did it")
    add("--yes", **FLAG, help="do not ask; needed where there is no terminal")
    add("--dry-run", **FLAG, help=f"only show what it would {what}")


COMMANDS: dict[str, tuple[str, Callable[[Parser], None]]] = {
    "list": ("show what is held, abandoned, queued for or orphaned (the default)", _list),
    "show": ("show all that is known of one name", _show),
    "release": ("release what somebody else holds", _release),
    "run": ("hold a lock while another program runs", _run),
    "resolve": ("say how an order ended that was begun and whose end is not known", _resolve),
    "prune": ("delete the expired records of orders from the database", _prune),
    "check": ("say what is wrong with routes, names of locks and PATHS (Flask)", lambda _: None),
}
"""What each does, and what adds its options."""
