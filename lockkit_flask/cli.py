"""``flask locks``: mounts ``lockkit.operate.commands`` over the aliases of the app."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import click
from flask import Flask, current_app, has_app_context
from flask.cli import ScriptInfo

from lockkit.model.errors import ConfigurationError
from lockkit.operate.commands import OrderRecords, run
from lockkit_flask.checks import findings, store_findings
from lockkit_flask.extension import app_locks

if TYPE_CHECKING:
    from lockkit.web.route_checks import Finding
    from lockkit_flask.records import Records

__all__ = ["locks"]

T = TypeVar("T")


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
def locks(ctx: click.Context, argv: tuple[str, ...]) -> None:
    """The exit statuses are those of ``lockkit.operate.commands``."""
    with _app(ctx).app_context():
        found = _settled(app_locks)
        clients = {alias: partial(found.__getitem__, alias) for alias in found}
        look = partial(_look, _app(ctx))
        prog = ctx.command_path
        ctx.exit(run(argv, clients, prog=prog, records=_order_records, findings=look))


def _look(app: Flask) -> Iterator[Finding]:
    yield from findings(app)
    yield from store_findings(app)


def _app(ctx: click.Context) -> Flask:
    """Wrong settings are found while the app is made: that is one line, and no traceback."""
    if has_app_context():
        return current_app._get_current_object()  # type: ignore[attr-defined, no-any-return]
    return _settled(ctx.ensure_object(ScriptInfo).load_app)


def _settled(step: Callable[[], T]) -> T:
    try:
        return step()
    except ConfigurationError as error:
        raise click.ClickException(str(error)) from error


def _order_records() -> OrderRecords:
    """The binds that the settings and the views name. Orders in Redis have nothing to prune."""
    from lockkit_flask.records import Records  # imports SQLAlchemy

    orders = app_locks().orders
    if orders is None:
        return OrderRecords({}, (), "this app has no orders: LOCKKIT_ORDERS is not set")
    found = [store.records for store in orders.stores()]
    databases = {_bind(each): each.prune for each in found if isinstance(each, Records)}
    return OrderRecords(databases, tuple(databases))


def _bind(records: Records) -> str:
    return records.table.metadata.info.get("bind_key") or "default"
