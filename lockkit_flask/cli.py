"""``flask locks``: mounts ``lockkit.commands`` over the aliases of the app."""

from __future__ import annotations

from functools import partial

import click
from flask.cli import with_appcontext

from lockkit.commands import run
from lockkit.errors import ConfigurationError
from lockkit_flask.extension import app_locks

__all__ = ["locks"]


class _Mount(click.Command):
    """Leaves every argument to the command, ``--help`` and ``--`` included."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.params["argv"] = tuple(args)
        return []


@click.command(
    "locks",
    cls=_Mount,
    add_help_option=False,
    short_help="Show what is locked, by whom, and what is stuck; release what is stuck.",
)
@click.pass_context
@with_appcontext
def locks(ctx: click.Context, argv: tuple[str, ...]) -> None:
    """The exit statuses are those of ``lockkit.commands``."""
    try:
        found = app_locks()
    except ConfigurationError as error:
        raise click.ClickException(str(error)) from error
    clients = {alias: partial(found.__getitem__, alias) for alias in found}
    ctx.exit(run(argv, clients, prog=ctx.command_path))
