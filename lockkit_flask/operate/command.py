"""``flask locks``: mounts ``lockkit.operate.commands`` over the aliases of the app."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import click
from flask import Flask, current_app, has_app_context
from flask.cli import ScriptInfo

from lockkit.model.errors import ConfigurationError
from lockkit_flask.leases.db_session import behind
from lockkit_flask.operate.checks import every_finding
from lockkit_flask.state import app_locks

if TYPE_CHECKING:
    from lockkit.operate.commands import OrderRecords

T = TypeVar("T")


@click.command(
    "locks",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    short_help="Show what is locked, by whom, and what is stuck; release what is stuck.",
)
@click.argument("argv", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def locks(ctx: click.Context, argv: tuple[str, ...]) -> None:
    """The exit statuses are those of ``lockkit.operate.commands``; a server need not import it."""
    from lockkit.operate.commands import run

    app = _app(ctx)
    with app.app_context():
        found = _settled(app_locks)
        clients = {alias: partial(found.__getitem__, alias) for alias in found}
        look = partial(every_finding, app)
        prog = ctx.command_path
        ctx.exit(run(argv, clients, prog=prog, records=_order_records, findings=look))


def _app(ctx: click.Context) -> Flask:
    """The app. Wrong settings are found while it is made."""
    if has_app_context():
        return behind(current_app)
    return _settled(ctx.ensure_object(ScriptInfo).load_app)


def _settled(step: Callable[[], T]) -> T:
    """Do a step. If the settings are wrong, show one line, and no traceback."""
    try:
        return step()
    except ConfigurationError as error:
        raise click.ClickException(str(error)) from error


def _order_records() -> OrderRecords:
    """The tables of the bind keys that the settings and the views name. Orders in Redis have none:
    there is nothing to prune."""
    from lockkit.operate.commands import OrderRecords

    orders = app_locks().orders
    if orders is None:
        raise ConfigurationError("this app has no orders: LOCKKIT_ORDERS is not set")
    tables = orders.tables()
    is_bind_key = any(table.using == "default" for table in tables)
    main = "SQLALCHEMY_DATABASE_URI" if is_bind_key else "default"
    databases = {table.using or main: table for table in tables}
    return OrderRecords(databases, tuple(databases))
