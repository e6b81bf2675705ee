"""Where the shop's database and machines are: from the environment, for Django and Flask alike."""

from __future__ import annotations

import os
import secrets
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TypedDict
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

HERE = Path(__file__).resolve().parent.parent
DATABASE_VARIABLE = "SHOP_DATABASE_URL"
"""Not DATABASE_URL: that may be in the shell for another project, and the shop makes tables."""

POSTGRESQL = ("postgresql", "postgres")
MYSQL = ("mysql", "mariadb")

CACHE_VARIABLE = "SHOP_CACHE_URL"
"""The variable with the URL of the Redis that is the shop's cache, if it has one."""

ORDERS = {
    "ORDER_ID": ["header:Idempotency-Key", "form:order_id", "json:order_id"],
    "PATHS": [r"^/orders/$"],
    "REQUIRED": True,
}
"""LOCKKIT_ORDERS, for both frameworks."""


class Database(TypedDict, total=False):
    """One entry of Django's DATABASES."""

    ENGINE: str
    NAME: str
    HOST: str
    PORT: str
    USER: str
    PASSWORD: str
    OPTIONS: dict[str, object]
    ATOMIC_REQUESTS: bool
    CONN_MAX_AGE: int
    TEST: dict[str, str]


@dataclass(frozen=True, slots=True)
class Machine:
    name: str
    framework: str
    url: str


def database_url() -> str:
    return os.environ.get(DATABASE_VARIABLE) or sqlite_url(HERE / "shop.sqlite3")


def sqlite_url(path: Path) -> str:
    return f"sqlite:///{path}"


def django_database(url: str) -> Database:
    """The settings of a ``sqlite:///path``, or of ``postgresql://user:password@host:port/name``,
    or of the same with ``mysql`` or ``mariadb``.

    Raises ValueError that says what to change or to install.
    """
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        return _sqlite(parts)
    if parts.scheme in POSTGRESQL:
        _needs("psycopg", "'psycopg[binary]'")
        return _server("postgresql", parts)
    if parts.scheme in MYSQL:
        _needs("pymysql", "PyMySQL")
        _install_pymysql()
        return _server("mysql", parts)
    found = f", not {parts.scheme}://" if parts.scheme else "; what it says is not a URL"
    raise ValueError(
        f"{DATABASE_VARIABLE} begins with sqlite:///, postgresql://, mysql:// or mariadb://{found}"
    )


def sqlalchemy_url(url: str) -> str:
    """The same database for SQLAlchemy."""
    scheme, separator, rest = url.partition("://")
    if scheme in POSTGRESQL:
        return f"postgresql+psycopg{separator}{rest}"
    if scheme in MYSQL:
        return f"mysql+pymysql{separator}{rest}"
    return url


def locks_beside(url: str) -> str:
    """Where Django keeps its locks by default: in, or beside, the project's database."""
    return f"sqlalchemy+{sqlalchemy_url(url)}"


def cache_backend() -> str:
    """django-redis' if the locks are there, else Django's own."""
    if os.environ.get("LOCKKIT_URL", "").startswith("django-redis:"):
        return "django_redis.cache.RedisCache"
    return "django.core.cache.backends.redis.RedisCache"


def machine() -> str:
    """The name of this machine, which the launcher gives it."""
    return os.environ.get("SHOP_MACHINE", "a")


def machines() -> list[Machine]:
    """All machines of the shop, as in SHOP_MACHINES="a,django,http://127.0.0.1:8001 b,…"."""
    entries = os.environ.get("SHOP_MACHINES", "").split()
    return [Machine(*entry.split(",", 2)) for entry in entries]


def secret_key() -> str:
    """Signs sessions. The launcher gives all machines one; else each start has its own."""
    return os.environ.get("SHOP_SECRET_KEY") or secrets.token_urlsafe(48)


def race_token() -> str:
    """Opens the race's views. Empty: they are closed."""
    return os.environ.get("SHOP_RACE_TOKEN", "")


def milliseconds(variable: str, default: int) -> float:
    """A duration of the environment, in seconds."""
    return int(os.environ.get(variable, default)) / 1000


def _sqlite(parts: SplitResult) -> Database:
    # WAL: readers see the last COMMIT and do not wait for the writer. DEFERRED (Django's default):
    # a transaction takes the write lock with its first write. With IMMEDIATE every request would
    # queue before its view began, and SQLite itself would be the lock.
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": unquote(parts.path.removeprefix("/")),
        "OPTIONS": {
            "timeout": 20,
            "transaction_mode": "DEFERRED",
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL",
        },
        "CONN_MAX_AGE": 60,
    }


def _needs(module: str, package: str) -> None:
    if find_spec(module) is None:
        raise ValueError(
            f"the database of {DATABASE_VARIABLE} needs {package}: "
            f"{sys.executable} -m pip install {package}"
        )


def _install_pymysql() -> None:
    """Replaces mysqlclient, which needs a compiler. Django checks the version of mysqlclient."""
    import pymysql

    pymysql.version_info = (2, 2, 1, "final", 0)
    pymysql.install_as_MySQLdb()


def _server(kind: str, parts: SplitResult) -> Database:
    options: dict[str, object] = dict(parse_qsl(parts.query))
    return {
        "ENGINE": f"django.db.backends.{kind}",
        "NAME": unquote(parts.path.removeprefix("/")),
        "HOST": str(options.pop("host", parts.hostname or "")),
        "PORT": str(parts.port or ""),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "OPTIONS": options,
        "CONN_MAX_AGE": 60,
    }
