#!/usr/bin/env python
"""The shop's commands: demo, race, serve, and Django's own."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).resolve().parent
INTERRUPTED = 130
WITH_A_DATABASE_OF_THEIR_OWN = ("demo", "race")


def main() -> None:
    sys.path.insert(0, str(HERE))  # also with PYTHONSAFEPATH
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
    if sys.argv[1:2] and sys.argv[1] in WITH_A_DATABASE_OF_THEIR_OWN:
        _execute_in_scratch()
    else:
        _execute()


def _execute_in_scratch() -> None:
    """A new database, gone when the command ends; unless DATABASE_URL says which one."""
    from shop import place

    with TemporaryDirectory(prefix="lockkit-shop-") as folder:
        if not os.environ.get(place.DATABASE_VARIABLE):
            os.environ[place.DATABASE_VARIABLE] = place.sqlite_url(Path(folder) / "shop.sqlite3")
        _execute()


def _execute() -> None:
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
