"""Options that may stand anywhere: Django's own, and those of ``python -m lockkit``."""

from __future__ import annotations

import argparse
from itertools import pairwise


def taken_out(
    parser: argparse.ArgumentParser, argv: list[str], namespace: argparse.Namespace | None = None
) -> tuple[argparse.Namespace, list[str]]:
    """Parse this parser's options, wherever they stand; return them and the other words. Words
    after ``--`` or ``run`` are not parsed: they belong to a program."""
    end = argv.index("--") if "--" in argv else len(argv)
    with_value = {
        flag for each in parser._actions if each.nargs != 0 for flag in each.option_strings
    }
    for at, (before, word) in enumerate(pairwise(["", *argv[:end]])):
        if word == "run" and before not in with_value:
            _, others = parser.parse_known_args(argv[:at])
            end = end if others else at
            break
    found, rest = parser.parse_known_args(argv[:end], namespace)
    return found, [*rest, *argv[end:]]
