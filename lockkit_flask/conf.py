"""The settings of one app: ``app.config`` read once, validated, before anything connects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flask import current_app

from lockkit.model.checks import check_callable, check_setting_names
from lockkit.model.errors import ConfigurationError
from lockkit.model.settings import URL_VARIABLE, AliasSettings, read_settings
from lockkit.orders import OrderSettings, read_order_settings
from lockkit.web.view_lock import ViewSettings, read_view_settings

if TYPE_CHECKING:
    from flask import Flask

SETTINGS = ("LOCKKIT", "LOCKKIT_URL", "LOCKKIT_VIEWS", "LOCKKIT_ORDERS", "LOCKKIT_USER")
UserHook = Callable[[], object]
"""Returns the primary key of the authenticated user, or None for nobody."""


@dataclass(frozen=True, slots=True)
class Config:
    """What ``app.config`` says about locks."""

    aliases: Mapping[str, AliasSettings]
    views: ViewSettings
    user_pk: UserHook
    orders: OrderSettings | None  #: None: LOCKKIT_ORDERS is not set, and there are none
    said: Mapping[str, object] = field(repr=False)  #: SETTINGS as they were; may be secret


def read_config(app: Flask) -> Config:
    """Validate LOCKKIT, LOCKKIT_URL, LOCKKIT_VIEWS, LOCKKIT_ORDERS and LOCKKIT_USER.

    The environment variable LOCKKIT_URL wins over the setting of that name, and both win over the
    default alias' location in LOCKKIT. Raises ConfigurationError that names the key and the remedy,
    also for a misspelt LOCKKIT_….
    """
    check_setting_names(app.config, SETTINGS)
    orders = app.config.get("LOCKKIT_ORDERS")
    return Config(
        aliases=read_settings(
            app.config.get("LOCKKIT"),
            default_location=default_location(app),
            url=app.config.get(URL_VARIABLE),
        ),
        views=read_view_settings(app.config.get("LOCKKIT_VIEWS")),
        user_pk=check_callable("LOCKKIT_USER", app.config.get("LOCKKIT_USER")) or flask_login_user,
        orders=None if orders is None else read_order_settings(orders),
        said=_said(app),
    )


def refuse_late_settings(app: Flask, config: Config) -> None:
    """Raise ConfigurationError for a setting that was set or changed since ``read_config``.

    It would be ignored: orders would run twice, or locks be in another store.
    """
    check_setting_names(app.config, SETTINGS)
    now = _said(app)
    if late := [key for key in SETTINGS if now[key] != config.said[key]]:
        raise ConfigurationError(
            f"{' and '.join(late)} of the app {app.name!r} came after LockKit(app), which reads "
            "settings once: set it before LockKit(app) or init_app(app), and do not change it later"
        )


def _said(app: Flask) -> dict[str, object]:
    return {key: _copied(app.config.get(key)) for key in SETTINGS}


def _copied(value: Any) -> Any:
    """A copy that shares no container with the value, because the app may change the value."""
    if isinstance(value, Mapping):
        return {key: _copied(each) for key, each in value.items()}
    return [*map(_copied, value)] if isinstance(value, (list, tuple)) else value


def default_location(app: Flask) -> str:
    """An SQLite file in the instance folder: it does not depend on the working directory."""
    return f"sqlite:///{Path(app.instance_path) / 'lockkit.sqlite3'}"


def has_flask_login() -> bool:
    return hasattr(current_app, "login_manager")


def flask_login_user() -> object:
    """The ID of Flask-Login's user; None if nobody is logged in, or the app does not use it."""
    if not has_flask_login():
        return None
    user = import_module("flask_login").current_user
    return user.get_id() if user.is_authenticated else None
