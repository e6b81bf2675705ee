"""``manage.py race``: the same orders against each way to lock."""

from __future__ import annotations

import argparse
import random
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from race import report, track
from race.machines import APPLICATIONS, WORKERS, Plan
from race.result import MODES, Result, faults
from shop.management.commands._launch import shop, why_not

FLASK_MODES = ("lockkit",)


class Command(BaseCommand):
    help = (
        "Sell one product on two machines at once. Exit status 1 if lockkit, row or fenced sells "
        "wrongly, or if none, naive or paused does not: such a race proves nothing."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--orders", type=positive, default=200)
        parser.add_argument("--stock", type=positive, default=20)
        parser.add_argument("--mode", choices=(*MODES, "all"), default="all")
        parser.add_argument("--format", choices=("table", "json"), default="table")
        add_machine_arguments(parser)
        parser.add_argument(
            "--buyers", type=positive, default=track.BUYERS, help="orders under way at once"
        )
        parser.add_argument("--seed", type=int, help="which buyer clicks where, and who twice")

    def handle(self, *_: Any, **options: Any) -> None:
        modes = MODES if options["mode"] == "all" else (options["mode"],)
        if reason := why_not(options["mode"]):
            raise CommandError(reason)
        modes = tuple(mode for mode in modes if not why_not(mode))
        if "flask" in options["machines"] and modes != FLASK_MODES:
            raise CommandError("Flask has no ATOMIC_REQUESTS to race with: use --mode lockkit")
        seed = random.randrange(10**6) if options["seed"] is None else options["seed"]
        race = track.Race(options["orders"], options["stock"], seed, options["buyers"])
        plan = Plan(options["machines"], options["workers"], options["processes"])
        outcomes = self._run(race, plan, modes, table=options["format"] == "table")
        if options["format"] == "json":
            self.stdout.write(report.as_json(outcomes))
        wrong = [fault for outcome in outcomes for fault in faults(outcome)]
        if wrong:
            raise CommandError(f"{'; '.join(wrong)} (seed {seed})")

    def _run(
        self, race: track.Race, plan: Plan, modes: tuple[str, ...], *, table: bool
    ) -> list[Result]:
        outcomes = []
        with shop(plan) as machines:
            if table:
                self.stdout.write(report.header())
                self.stdout.flush()
            for mode in modes:
                outcomes.append(track.run(race, mode, machines, plan.race_token))
                if table:
                    self.stdout.write(report.line(outcomes[-1]))
                    self.stdout.flush()
        return outcomes


def add_machine_arguments(parser: CommandParser) -> None:
    parser.add_argument("--workers", choices=tuple(WORKERS), default="sync")
    parser.add_argument("--processes", type=positive, help="of each machine")
    parser.add_argument(
        "--machines",
        type=_frameworks,
        default=("django", "django"),
        help="the framework of each, as in django,flask",
    )


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("must be a number from 1")
    return int(text)


def _frameworks(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if len(names) != 2 or not set(names) <= set(APPLICATIONS):
        raise argparse.ArgumentTypeError("must be two of django, flask, as in django,flask")
    return names
