"""What all commands that change something do: ask first, and log each attempt."""

from __future__ import annotations

import argparse
import getpass
import logging
import os
from collections.abc import Mapping

from lockkit.operate.console import Console, UsageError
from lockkit.operate.text import escape

DRY_RUN = ": this was a dry run"

_log = logging.getLogger("lockkit.audit")
"""One line for each attempt, as a warning: without a logging configuration it is printed."""


def refusal(question: str, arguments: argparse.Namespace, console: Console) -> str | None:
    """A reason not to do it; None to go on. Raises UsageError if there is no terminal to ask at."""
    if arguments.dry_run:
        return DRY_RUN
    if not arguments.yes and not console.interactive:
        raise UsageError("there is no terminal to ask on: use --yes")
    return None if arguments.yes or console.confirm(question) else ""


def audit(command: str, outcome: str, facts: Mapping[str, object]) -> None:
    _log.disabled = False  # logging.config disables what exists before it, unless told otherwise
    words = " ".join(f"{key}={_quoted(value)}" for key, value in facts.items())
    _log.warning(
        "locks %s: outcome=%s operator=%s %s", command, _quoted(outcome), operator(), words
    )


def operator() -> str:
    """The operator: ``root@web-1:4121 uid=0 sudo_user=ann``. The names come from the environment
    and may be wrong; the uid comes from the system."""
    try:
        user = _quoted(getpass.getuser())
    except (OSError, KeyError, ImportError):  # a container's user may have no name
        user = "?"
    sudo_user = os.environ.get("SUDO_USER")
    sudo = f" sudo_user={_quoted(sudo_user)}" if sudo_user else ""
    return f"{user}@{os.uname().nodename}:{os.getpid()} uid={os.getuid()}{sudo}"


def _quoted(value: object) -> str:
    """A value of the line, in quotes if it could be taken for several."""
    text = escape(str(value))
    return '"' + text.replace('"', r"\x22") + '"' if set(text) & {" ", "=", '"'} else text
