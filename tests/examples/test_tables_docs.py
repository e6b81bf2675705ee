"""docs/tables.md: its Python runs, on real servers without lockkit's table, and its settings do."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import database_settings
import pytest
from places import KIT, ROOT

import lockkit
from lockkit.model.settings import read_settings
from lockkit.stores.registry import load_store
from lockkit.testing.servers import PostgresServer

PAGE = (ROOT / "docs" / "tables.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def block(mark: str) -> str:
    (found,) = (each for each in BLOCKS if mark in each)
    return str(found)


def run_block(mark: str, here: dict[str, str], **names: Any) -> dict[str, Any]:
    text = block(mark)
    for word, other in here.items():
        assert word in text
        text = text.replace(word, other, 1)
    names = {"lockkit": lockkit, **names}
    exec(compile(text, "docs/tables.md", "exec"), names)
    return names


@pytest.fixture
def engine(lock_table_url: str) -> Iterator[Any]:
    url = lock_table_url.replace("postgresql:", "postgresql+psycopg:")
    names = run_block("client=engine", {"postgresql+psycopg://user@host/shop": url})
    yield names["engine"]
    names["engine"].dispose()


def test_there_are_no_other_blocks() -> None:
    marks = (
        "import lockkit\n", "mariadb://", "client=engine", '"engine"', "django://",
        "lockkit_django", "def pass",
    )  # fmt: skip
    assert {block(mark) for mark in marks} == set(BLOCKS)


def test_a_table(postgres_url: str) -> None:
    assert "lease" in run_block("import lockkit\n", {"postgresql://user@host/shop": postgres_url})


def test_mariadb(mariadb_url: str) -> None:
    url = mariadb_url.replace("mysql:", "mariadb:")
    run_block("mariadb://", {"mariadb://user@host/shop": url})


def test_an_engine_and_its_settings(engine: Any) -> None:
    settings = run_block('"engine"', {}, engine=engine)["LOCKKIT"]
    store = load_store(read_settings(settings, default_location="memory://", environ={})["default"])
    store.wire().close()


PROJECT = """
import sys
import django
from django.conf import settings
from django.core.management import call_command
sys.path.append({kit!r})
import orders_django.mysql
DATABASES = dict.fromkeys(["default", "reports"], {database!r})
settings.configure(INSTALLED_APPS=["lockkit_django"], DATABASES=DATABASES, LOCKKIT=LOCKKIT)
django.setup()
call_command("migrate", "lockkit_django", verbosity=0)
{block}
print(*{{type(aliases[alias].store).__name__ for alias in LOCKKIT}})
"""


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])
def test_databases_of_django(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if kind == "sqlite":
        database = database_settings.sqlite(tmp_path / "shop.sqlite3")
    else:
        url = request.getfixturevalue({"postgresql": "postgres_url"}.get(kind, "mariadb_url"))
        database = getattr(database_settings, kind)(url)
    program = PROJECT.format(kit=str(KIT), database=database, block=block("lockkit_django"))
    command = [sys.executable, "-W", "error", "-c", block("django://") + program]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == [OF_DJANGO[kind]]


OF_DJANGO = {
    "sqlite": "SQLiteStore",
    "postgresql": "DatabasePostgreSQL",
    "mariadb": "DatabaseMySQL",
}


def test_a_password_that_is_read(
    tmp_path: Path, lock_table_url: str, postgres_server: PostgresServer
) -> None:
    """The server trusts everybody; what the function returns is tested with MariaDB."""
    secret = tmp_path / "database"
    secret.write_text("of-the-shop\n")
    here = {
        "postgresql://user@host/shop": lock_table_url,
        "/run/secrets/database": str(secret),
    }
    locks = run_block("def pass", here)["locks"]
    locks.lock("stock:42").acquire().release()
    secret.unlink()
    locks.close()
    with pytest.raises(lockkit.BackendUnavailable, match="function in OPTIONS"):
        locks.lock("stock:42").acquire()
