"""Who did what to somebody else's lease or order: for the log, and for the store."""

from __future__ import annotations

import getpass
import logging
import os

from lockkit.operate.commands.terminal import escape
from lockkit.runtime import process

__all__ = ["audit", "operator"]

_log = logging.getLogger("lockkit.audit")
"""One line for each attempt, as a warning: without a logging configuration it is printed."""


def operator() -> str:
    """Who is at work: ``root@web-1:4121 uid=0 sudo_user=ann``. The environment may be wrong; the
    uid is the system's."""
    facts = [f"{_user()}@{process.host()}:{os.getpid()}"]
    if hasattr(os, "getuid"):
        facts.append(f"uid={os.getuid()}")
    if sudo_user := os.environ.get("SUDO_USER"):
        facts.append(f"sudo_user={escape(sudo_user)}")
    return " ".join(facts)


def audit(command: str, outcome: str, reason: str | None, **facts: object) -> None:
    """Write down one attempt. The facts are in the order in which they are given."""
    told = {"operator": operator(), **facts}
    words = [
        f"{key}={value if key == 'operator' else escape(str(value))}" for key, value in told.items()
    ]
    words.append(f"reason={escape(reason) if reason else '-'}")
    words.append(f"outcome={outcome}")
    _log.warning("locks %s: %s", command, " ".join(words))


def _user() -> str:
    try:
        return escape(getpass.getuser())
    except (OSError, KeyError, ImportError):  # a container's user may have no name
        return "?"
