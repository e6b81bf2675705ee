"""The Flask twin of the shop: the same database, the same locks, the same page."""

from __future__ import annotations

from flask import Flask

from flask_shop import views
from flask_shop.books import db, user_of_session
from lockkit_flask import LockKit
from shop import place


def create_app() -> Flask:
    app = Flask(__name__, static_folder=None)
    url = place.database_url()
    app.config.update(
        SECRET_KEY=place.secret_key(),
        SQLALCHEMY_DATABASE_URI=place.sqlalchemy_url(url),
        SQLALCHEMY_ENGINE_OPTIONS=_engine_options(url),
        SESSION_COOKIE_NAME="flask-shop",  # Django's is there too: cookies do not know ports
        SESSION_COOKIE_SAMESITE="Lax",
        MAX_CONTENT_LENGTH=2**20,
        LOCKKIT={"default": place.locks_beside(url)},
        LOCKKIT_ORDERS=place.ORDERS,
        LOCKKIT_USER=user_of_session,
    )
    db.init_app(app)
    app.register_blueprint(views.shop)
    LockKit(app)
    return app


def _engine_options(url: str) -> dict[str, object]:
    if url.startswith("sqlite:"):
        return {"connect_args": {"timeout": 20}}  # WAL mode is in the file: Django has set it
    return {"pool_pre_ping": True}
