"""Which words of a command line are options and their values, and where a program begins."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["OPTIONS", "first_word", "is_run", "program_at", "split_program"]

FLAGS = ("damaged", "done", "dry_run", "fail_on_stuck", "lost", "retry", "reverse", "stuck", "yes")
VALUES = ("alias", "batch", "database", "fence", "format", "limit", "match", "max_hold",
          "older_than", "owner", "reason", "sort", "timeout", "ttl", "waiting_longer_than",
          "watch")  # fmt: skip
OPTIONS = (*FLAGS, *VALUES)
"""Of all commands, as Python spells them. A test compares them with the parsers."""

WITH_VALUE = frozenset("--" + value.replace("_", "-") for value in VALUES)


def split_program(rest: list[str]) -> tuple[list[str], list[str]]:
    """Ours, and the program with its arguments: the first word after the name, or after ``--``."""
    end = _program(rest)
    return rest[:end], rest[end + (rest[end : end + 1] == ["--"]) :]


def _program(rest: Sequence[str], also: Sequence[str] = ()) -> int:
    """Where it begins, or the ``--`` before it; else the end."""
    end = rest.index("--") if "--" in rest else len(rest)
    name = first_word(rest[:end], also)
    if name is None:
        return end
    program = first_word(rest[name + 1 : end], also)
    return end if program is None else name + 1 + program


def is_run(argv: Sequence[str]) -> bool:
    """Whether the command is ``run``, and not a lock that is called so."""
    first = first_word(argv)
    return first is not None and argv[first] == "run"


def program_at(argv: Sequence[str], also: Sequence[str] = ()) -> int:
    """Where the arguments of ``locks run``'s program begin; else the end. ``also``: other options
    that have a value."""
    first = first_word(argv, also)
    if first is None or argv[first] != "run":
        return argv.index("--") if "--" in argv else len(argv)
    return first + 1 + _program(argv[first + 1 :], also)


def first_word(rest: Sequence[str], also: Sequence[str] = ()) -> int | None:
    """Where the first argument stands that is neither an option nor the value of one."""
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
