"""Whether a file is mounted without its directory, as by ``docker run -v ./a.sqlite3:/a.sqlite3``.

The files that SQLite and lockkit make beside it are then seen by nobody else who mounts it. SQLite
keeps the latest writes in one of them, so each side would grant the same name.
"""

from __future__ import annotations

import os
import re

from lockkit.model.errors import ConfigurationError

MOUNTS = "/proc/self/mountinfo"


def check_mounts(*paths: str) -> None:
    """Raises ConfigurationError if one of them is. Limit: only Linux tells."""
    try:
        with open(MOUNTS, "rb") as mounts:
            places = {line.split(b" ", 5)[4] for line in mounts}
    except OSError:
        return
    for path in paths:
        if _escaped(path) in places:
            raise ConfigurationError(
                f"{path} is mounted without its directory, so nobody else sees the files beside "
                "it, and two may hold one name: mount the directory"
            )


def _escaped(path: str) -> bytes:
    return re.sub(rb"[ \t\n\\]", lambda found: b"\\%03o" % ord(found[0]), os.fsencode(path))
