"""``manage.py locks``: mounts ``lockkit.operate.commands`` over the aliases of the settings."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections

from lockkit.model.errors import ConfigurationError
from lockkit.operate.anywhere import taken_out
from lockkit.operate.arguments import OPTIONS
from lockkit.operate.commands import OrderRecords, run
from lockkit.orders.settings import SOURCE
from lockkit_django.leases.client import locks
from lockkit_django.orders.table import OrderTable, written_in
from lockkit_django.orders.visit import order_rules


class Command(BaseCommand):
    """Django's own options keep working, before and after the command's.

    ``call_command("locks", "--stuck", format="json")`` raises CommandError for every exit status
    but 0, with the status as its ``returncode``.
    """

    help = "Show what is locked, by whom, and what is stuck; release what is stuck."
    stealth_options = OPTIONS
    requires_system_checks = ()  # the command is needed most in a project with a fault

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        """``parse_args`` takes Django's own options out, wherever they stand."""
        ours: Any = {"add_help": False, "allow_abbrev": False, **kwargs}
        parser = super().create_parser(prog_name, subcommand, **ours)
        self._prog = parser.prog.strip()  # call_command knows no program
        vars(parser)["parse_args"] = partial(_parsed, parser)
        return parser

    def print_help(self, prog_name: str, subcommand: str) -> None:
        """For ``manage.py help locks``."""
        prog = self.create_parser(prog_name, subcommand).prog
        run(["--help"], {}, stdout=self.stdout, stderr=self.stderr, prog=prog)

    def handle(self, *args: str, **options: Any) -> None:
        try:
            clients = {alias: partial(locks.__getitem__, alias) for alias in locks}
        except ConfigurationError as error:
            raise CommandError(str(error)) from error
        for stream in (self.stdout, self.stderr):
            stream.ending = ""  # the command writes its own line ends
            stream.style_func = None
        end = 0 if args[:1] and args[0].startswith("-") else 1  # where the command's name ends
        status = run(
            [*args[:end], *_as_arguments(options), *args[end:]],
            clients,
            stdout=self.stdout,
            stderr=self.stderr,
            color=False if options["no_color"] else options["force_color"] or None,
            prog=self._prog,
            records=_order_records,
        )
        if status and getattr(self, "_called_from_command_line", False):
            sys.exit(status)
        if status:
            raise CommandError(f"locks ended with exit status {status}", returncode=status)


def _order_records() -> OrderRecords:
    """Every database may have records, because a view can name a database of its own."""
    if getattr(settings, SOURCE, None) is None:
        raise ConfigurationError(f"this project has no orders: {SOURCE} is not set")
    return OrderRecords({alias: OrderTable(alias) for alias in connections}, _usual())


def _usual() -> Iterator[str]:
    """The database that the settings name. If it is the routers' choice, they are asked now, and
    may have no answer outside of a request."""
    rules = order_rules().settings
    if rules.claims:
        return
    alias = written_in(rules.using)
    if alias not in connections:
        which = f"{SOURCE}['USING'], or a router, names the database {alias!r}"
        raise ConfigurationError(f"{which}, which DATABASES does not have")
    yield alias


def _parsed(parser: CommandParser, args: Any = None, namespace: Any = None) -> Any:
    options, rest = taken_out(parser, list(sys.argv[1:] if args is None else args), namespace)
    options.args = rest
    return options


def _as_arguments(options: dict[str, Any]) -> Iterator[str]:
    """As arguments of a command line, the options that ``call_command`` got as keywords."""
    for key in OPTIONS:
        value, flag = options.get(key), "--" + key.replace("_", "-")
        if value is True:
            yield flag
        elif value is not None and value is not False:
            values = value if isinstance(value, list | tuple) else [value]
            yield from (f"{flag}={each}" for each in values)
