"""``locks check``: what is wrong with the routes of an application."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from lockkit.model.errors import ConfigurationError
from lockkit.operate.commands.exits import Exit
from lockkit.operate.commands.stores import Stores
from lockkit.operate.commands.terminal import Console, printable

if TYPE_CHECKING:
    from lockkit.web.route_checks import Finding

__all__ = ["FindingsFactory", "check", "no_findings"]

FindingsFactory = Callable[[], "Iterable[Finding]"]
"""Called for ``check`` only."""


def no_findings() -> Iterable[Finding]:
    raise ConfigurationError(
        "only an application has routes to check: 'flask locks check', in Django 'manage.py check'"
    )


def check(
    factory: FindingsFactory,
    arguments: argparse.Namespace,  # noqa: ARG001  as of all commands
    stores: Stores,  # noqa: ARG001  as of all commands
    console: Console,
) -> Exit:
    """Show each, with its remedy; ``Exit.ERROR`` if there is one."""
    found = list(factory())
    for finding in found:
        console.write(f"{printable(finding.text)}.\n    {printable(finding.remedy)}\n")
    if not found:
        console.write("nothing found\n")
    return Exit.ERROR if found else Exit.OK
