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
    os.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"  # another project's may be exported
    _make_paths_absolute()
    _look_at_database()
    if sys.argv[1:2] and sys.argv[1] in WITH_A_DATABASE_OF_THEIR_OWN:
        _execute_in_scratch()
    else:
        _execute()


def _make_paths_absolute() -> None:
    """The machines have another working directory."""
    from shop import place

    for variable in (place.DATABASE_VARIABLE, "LOCKKIT_URL"):
        scheme, _, path = os.environ.get(variable, "").partition(":///")
        if scheme == "sqlite" and path:
            os.environ[variable] = place.sqlite_url(Path(path).absolute())


def _look_at_database() -> None:
    """Say in one line what would otherwise be a traceback or a surprise."""
    from shop import place

    try:
        place.django_database(place.database_url())
    except ValueError as error:
        sys.exit(f"manage.py: {error}")
    if "DATABASE_URL" in os.environ and not os.environ.get(place.DATABASE_VARIABLE):
        print(f"DATABASE_URL is not followed; {place.DATABASE_VARIABLE} is.", file=sys.stderr)


def _execute_in_scratch() -> None:
    """A new database, gone when the command ends; unless SHOP_DATABASE_URL says which one."""
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
