"""``manage.py demo``: the whole story in a minute."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection

from race import double_click, report, track
from race.machines import Machine, Plan
from race.result import MODES, PAUSES, faults
from shop.management.commands._launch import shop, where_locks_are, why_not
from shop.management.commands.race import add_machine_arguments

STORIES = {
    "none": "No lock. Both machines read the same stock, and both sell it.",
    "naive": "The decorator that everybody writes first: it releases before Django COMMITs.",
    "lockkit": '@lock_view("stock:{sku:str}"): lock, transaction, sale, COMMIT, release.',
    "row": "The database's own row lock: enough, while all that matters is in one database.",
    "paused": "lockkit, and one seller is stopped in mid-order until its lease is over.",
    "fenced": "The same, with a fencing token: the row refuses what the seller writes then.",
}

NEXT = """\
What to look at next
  the six views; only the lock differs     example_project/shop/race_views.py
  what you have seen, and why              docs/demo.md
  the shop with its page, on two machines  make serve
  the same with the locks in Redis         LOCKKIT_URL=redis://127.0.0.1:6379/0 make demo
  and with the shop on PostgreSQL          SHOP_DATABASE_URL=postgresql://… make demo
  threads, and more orders                 .venv/bin/python example_project/manage.py race \\
                                             --workers gthread --orders 400 --stock 40
  who holds what, while make serve runs    .venv/bin/python example_project/manage.py locks
"""


class Command(BaseCommand):
    help = "Two machines, one shop: oversold without a lock, with the usual one, and not with ours."

    def add_arguments(self, parser: CommandParser) -> None:
        add_machine_arguments(parser)

    def handle(self, *_: Any, **options: Any) -> None:
        began = time.monotonic()
        plan = Plan(options["machines"], options["workers"], options["processes"])
        self._say("Starting two machines …")
        with shop(plan) as machines:
            self._introduce(machines)
            wrong = self._race(machines, plan) + self._click(machines)
        if wrong:
            raise CommandError("; ".join(wrong))
        self._say(f"All as it should be, in {time.monotonic() - began:.0f} s.\n")
        self._say(NEXT)

    def _introduce(self, machines: list[Machine]) -> None:
        for machine in machines:
            self._say(f"  machine {machine.name}   {machine.url}")
        self._say(f"  database    {connection.display_name}, shared by both")
        self._say(f"  locks       {where_locks_are()}\n")

    def _race(self, machines: list[Machine], plan: Plan) -> list[str]:
        race = track.Race()
        short = replace(race, orders=3 * race.stock)
        self._say(
            f"{race.orders} orders for a product with a stock of {race.stock}, from {race.buyers} "
            "buyers at once, some of whom click twice:\n"
        )
        wrong = []
        for mode in MODES:
            self._say(f"{mode}: {STORIES[mode]}")
            if reason := why_not(mode):
                self._say(f"  not here: {reason}\n")
                continue
            outcome = track.run(short if mode in PAUSES else race, mode, machines, plan.race_token)
            self._say(f"  {report.sentence(outcome)}\n")
            wrong += faults(outcome)
        return wrong

    def _click(self, machines: list[Machine]) -> list[str]:
        self._say("Double click: one form, sent ten times, to both machines at once.")
        findings = double_click.run(machines)
        for text, holds in findings:
            self._say(f"  {'yes' if holds else 'NO'}: {text}")
        self._say("")
        return [text for text, holds in findings if not holds]

    def _say(self, text: str) -> None:
        self.stdout.write(f"{text}\n")
        self.stdout.flush()
