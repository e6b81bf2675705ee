"""Texts of the command line as values; what makes no sense is a usage error."""

from __future__ import annotations

import argparse
import re

from lockkit.model.errors import InvalidName
from lockkit.model.naming import check_name
from lockkit.operate.commands.terminal import seconds, unescape

__all__ = ["count", "duration", "duration_or_none", "fence", "interval", "name", "order_name"]

KEY = re.compile(r"[0-9a-f]{64}")


def name(text: str) -> str:
    """As it is shown: with its escapes."""
    try:
        return check_name(unescape(text))
    except InvalidName as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def order_name(text: str) -> str:
    """The name of an order's lock, as it is listed; the key alone will do."""
    return f"order:{text}" if KEY.fullmatch(text) else name(text)


def duration(text: str) -> float:
    try:
        return seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def duration_or_none(text: str) -> float | None:
    return None if text == "none" else duration(text)


def interval(text: str) -> float:
    value = duration(text)
    if value < 0.1:  # noqa: PLR2004
        raise argparse.ArgumentTypeError("0.1 seconds is the shortest interval")
    return value


def count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number, of 1 or more")
    return int(text)


def fence(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a fencing token")
    return int(text)
