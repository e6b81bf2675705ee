"""The file that a URL names, and what SQLite does not say of its files and the system does."""

from __future__ import annotations

import errno
import os
import re
from typing import TYPE_CHECKING

from lockkit.model.errors import ConfigurationError

if TYPE_CHECKING:
    from lockkit.model.settings import AliasSettings

MOUNTS = "/proc/self/mountinfo"


def path_of_url(settings: AliasSettings) -> str:
    """The path in ``sqlite:///path``. Raises ConfigurationError."""
    where = settings.place
    _, _, rest = settings.location.partition("://")
    host, slash, path = rest.partition("/")
    if host or not slash or "?" in path:
        raise ConfigurationError(
            f"{where} must be 'sqlite:///relative/path' or 'sqlite:////absolute/path', "
            "without a host or a query"
        )
    if not path or ":memory:" in path or path.endswith("/"):
        raise ConfigurationError(
            f"{where} names no file; use 'memory://' for locks within one process"
        )
    return path


def check_mounts(*paths: str) -> None:
    """Raises ConfigurationError if one of these files is mounted without its directory, as by
    ``docker run -v ./a.sqlite3:/a.sqlite3``. Limit: only Linux tells.

    The files that SQLite and lockkit make beside it are then seen by nobody else who mounts it.
    SQLite keeps the latest writes in one of them, so each side would grant the same name.
    """
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


def why_none_opens() -> str:
    """What keeps this process from opening any file. Empty: nothing does."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return os.strerror(error.errno) if error.errno in (errno.EMFILE, errno.ENFILE) else ""
    return ""
