"""A project that has ``lockkit_django`` installed and uses nothing of it."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import gc, json, sys
import django
from django.conf import settings

database = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
settings.configure(DATABASES={"default": database}, INSTALLED_APPS=sys.argv[1:])
django.setup()
loaded = [name for name in sys.modules if name.startswith("lockkit")]

from django.core.signals import request_started
from django.db import connection, transaction

def ask():
    request_started.send(None)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        return cursor.fetchone()

calls = 0
def note(frame, event, _):
    global calls
    calls += event == "call"

gc.disable()
ask()
sys.setprofile(note)
ask()
sys.setprofile(None)
print(json.dumps([calls, loaded]))
"""


def of_project(*apps: str) -> tuple[int, set[str]]:
    """How many functions a query calls, and which modules of lockkit are there."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *apps], check=True, capture_output=True, text=True
    )
    calls, loaded = json.loads(done.stdout)
    return calls, set(loaded)


def test_its_queries_call_what_they_did_and_checks_are_imported_when_they_run() -> None:
    calls, loaded = of_project("lockkit_django")
    assert calls == of_project()[0]
    assert "lockkit_django.models" in loaded
    assert not {name for name in loaded if name.startswith("lockkit_django.orders")}
    assert not {name for name in loaded if name.endswith(".checks") and "django" in name}
