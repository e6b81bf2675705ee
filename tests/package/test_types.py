"""Code that uses lockkit, and the docs, under two strict type checkers: mypy and pyright. Each of
them checks everything in one run, because most of its time goes to imports.

A line of the programs below that ends with ``# wrong`` must be an error, and no other line is one.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from places import ROOT
from type_checkers import Errors, errors_of_mypy, errors_of_pyright

OPTIONS = """
import lockkit
from lockkit import aio
from lockkit_django import alocks as django_alocks, locked as django_locked, locks as django_locks
from lockkit_flask import alocks, locked as flask_locked, locks

lockkit.connect("memory://", ttl=3, options={"size": 5})
lockkit.connect("memory://", tll=3)  # wrong
aio.connect("memory://", ttl="3")  # wrong

client = lockkit.connect("memory://")
client.lock("a", timeout=5, reentrant=True, owner="me", on_lost=print)
client.lock("a", timout=5)  # wrong
client.lock("a", ttl=None)  # wrong
client.lock("a", in_atomic="allow")  # wrong
client.semaphore("a", 3, fair=False, label="x")
client.semaphore("a", 3, owner="me")  # wrong
client.rwlock("a", owner="me").read().acquire()
client.rwlock("a", reentrant=True)  # wrong
client.multi("a", kind="semaphore", permits=3, timeout=None)
client.multi("a", kind="semaphore", permit=3)  # wrong
client.multi("a", "b", kind="read", timeout=1.5)
client.multi("a", "b", timout=1.5)  # wrong
aio.connect("memory://").lock("a", timout=5)  # wrong
locks["default"].lock("a", timout=5)  # wrong
alocks["default"].lock("a", timout=5)  # wrong

django_locks["default"].lock("a", in_atomic="allow", timeout=0)
django_locks["default"].semaphore("a", 3, in_atomic="allow")
django_locks["default"].rwlock("a", in_atomic="allow").write()
django_locks["default"].multi("a", in_atomic="allow")
django_locks["default"].lock("a", in_atomic="alow")  # wrong
django_locks["default"].lock("a", until="commit")
django_locks["default"].multi("a", until="commit")
django_locks["default"].lock("a", until="comit")  # wrong
client.lock("a", until="commit")  # wrong
django_locked("a", until="commit")
django_locks["default"].lock("a", timout=5)  # wrong
django_alocks["default"].lock("a", in_atomic="allow")
django_alocks["default"].lock("a", timout=5)  # wrong
django_alocks["default"].lock("a", until="commit")  # wrong
alocks["default"].multi("a", until="commit")  # wrong

lockkit.locked("a", ttl=5, timeout=None)
lockkit.locked("a", tll=5)  # wrong
lockkit.locked("a", when_held="wait")  # wrong
django_locked("a", alias="b", in_atomic="allow")
django_locked("a", alais="b")  # wrong
flask_locked("a", alias="b")
flask_locked("a", in_atomic="allow", until="commit")
flask_locked("a", in_atomc="allow")  # wrong
"""

LOCKED = """
from typing import assert_type
from lockkit import Lease
from lockkit.aio import AsyncLease
from {package} import locked


@locked("report:{{day}}")
def plain(day: str, copies: int = 1) -> list[str]:
    return [day] * copies


@locked("report:{{day}}", when_held="skip")
def skipped(day: str) -> list[str]:
    return [day]


@locked("report:{{day}}", when_held="skip", timeout=5)
async def skipped_in_loop(day: str) -> list[str]:
    return [day]


@locked("report:{{day}}", lease_as="lease")
def leased(lease: Lease, day: str) -> int:
    return lease.fencing_token


@locked("report:{{day}}", lease_as="lease")
def leased_by_keyword(day: str, *, lease: Lease) -> int:
    return lease.fencing_token


@locked("report:{{day}}", lease_as="lease", when_held="skip")
async def leased_in_loop(lease: AsyncLease, day: str) -> int:
    return lease.fencing_token


@locked("report:{{day}}", lease_as="lease", when_held="skip")
def leased_or_skipped(day: str, lease: Lease) -> int:
    return lease.fencing_token


class Reports:
    @locked("report:{{day}}", when_held="skip")
    def make(self, day: str) -> int:
        return 1

    @locked("report:{{day}}", lease_as="lease")
    def leased(self, day: str, lease: Lease) -> int:
        return lease.fencing_token


assert_type(plain("monday", copies=2), list[str])
plain(5)  # wrong
assert_type(skipped("monday"), list[str] | None)
skipped("monday").sort()  # wrong
skipped(5)  # wrong
assert_type(leased("monday"), int)
leased(5)  # wrong
assert_type(leased_by_keyword("monday"), int)
assert_type(leased_or_skipped("monday"), int | None)
assert_type(Reports().make("monday"), int | None)
assert_type(Reports().leased("monday"), int)


async def in_loop() -> None:
    assert_type(await skipped_in_loop("monday"), list[str] | None)
    await skipped_in_loop(5)  # wrong
    assert_type(await leased_in_loop("monday"), int | None)
"""

FLASK = """
from typing import assert_type
from lockkit import fencing
from lockkit_flask import current_lease, lock_view


@lock_view("stock:{sku}", timeout=5)
def deduct(sku: str) -> dict[str, int]:
    current_lease().check()
    fencing.token_of(current_lease())
    assert_type(current_lease()["stock:42"].fencing_token, int)
    for name in current_lease().names:
        current_lease()[name].extend(5)
    return {"token": current_lease().fencing_token}


assert_type(deduct("42"), dict[str, int])
deduct(42)  # wrong
lock_view("stock", timout=5)  # wrong
current_lease().fencing_tokn  # wrong
"""

VIEWS = """
from typing import assert_type
from django.http import HttpResponse
from lockkit import Lease
from lockkit.aio import AsyncLease
from lockkit_django import AsyncLockedRequest, LockedRequest, lock_view


@lock_view("stock:{sku}")
def deduct(request: LockedRequest, sku: str) -> HttpResponse:
    assert_type(request.lease, Lease)
    request.lease.chek()  # wrong
    return HttpResponse(f"{request.path} {request.lease.fencing_token}")


@lock_view("stock:{sku}")
async def deduct_in_loop(request: AsyncLockedRequest, sku: str) -> HttpResponse:
    assert_type(request.lease, AsyncLease)
    await request.lease.extend()
    return HttpResponse(request.lease.fencing)  # wrong


lock_view("stock", "order", timeout=5)
lock_view("stock", timout=5)  # wrong
"""

PROGRAMS = {
    "options": OPTIONS,
    "views": VIEWS,
    "flask_app": FLASK,
    **{
        f"locked_{package}": LOCKED.format(package=package)
        for package in ("lockkit", "lockkit_django", "lockkit_flask")
    },
}


def wrong(program: str) -> set[int]:
    lines = program.split("\n")
    return {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("checker", ["by_mypy", "by_pyright"])
def test_what_is_wrong_is_an_error_and_nothing_else(
    name: str, checker: str, request: pytest.FixtureRequest
) -> None:
    found: Errors = request.getfixturevalue(checker)
    errors = found.get(f"{name}.py", {})
    assert errors.keys() == wrong(PROGRAMS[name]), errors


PAGES = (*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md")
LEFT_OUT = ("classic.md",)
"""Its code is wrong on purpose: it is what people write before they look for a library."""
FILE = re.compile(r"# ([\w/]+\.py)\n")
"""The first line of a block that is a file of a project, or a part of one. The other blocks of a
page are one program, from top to bottom."""
BESIDE = {
    "shop/__init__.py": "",
    "shop/models.py": """
from django.db import models
class Order(models.Model):
    charge = models.CharField(max_length=40)
""",
    "shop/payments.py": """
def charge(*, idempotency_key: str) -> str:
    return idempotency_key
""",
    "etcd_store.py": """
from lockkit.stores.redis.store import RedisStore as EtcdStore
from lockkit.testing.servers import RedisServer as EtcdServer
__all__ = ["EtcdServer", "EtcdStore"]
""",
}
"""What the pages use, and the reader has."""
SHORT = """
# Views are as short as can be. What is in them is looked at.
disallow_untyped_defs = False
disallow_incomplete_defs = False
disallow_untyped_calls = False
disallow_untyped_decorators = False
# Fields of models: the plugin of Django knows them. And db.Model, which mypy cannot find; pyright
# looks for names. Admin classes do not say of which model they are.
disable_error_code = var-annotated, name-defined, type-arg
disallow_subclassing_any = False
"""


def pages() -> dict[str, str]:
    """The docs as programs, by their paths."""
    files = dict(BESIDE)
    for page in PAGES:
        text = page.read_text(encoding="utf-8") if page.name not in LEFT_OUT else ""
        for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            file = FILE.match(block)
            name = file[1] if file else f"{page.stem.lower().replace('-', '_')}_page.py"
            files[name] = files.get(name, "") + block
    del files["settings.py"]  # goes on with Django's own
    return files


OF_DOCS = pages()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("typed")
    strict = {
        f"{name}.py": f"# pyright: strict, reportUnusedExpression=false{text}"
        for name, text in PROGRAMS.items()
    }
    for name, text in {**OF_DOCS, **strict}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def by_mypy(folder: Path) -> Errors:
    modules = [name.removesuffix(".py").replace("/", ".") for name in OF_DOCS]
    names = ",".join(module.removesuffix(".__init__") for module in modules)
    return errors_of_mypy(folder, f"[mypy]\nstrict = True\n[mypy-{names}]{SHORT}")


@pytest.fixture(scope="module")
def by_pyright(folder: Path) -> Errors:
    return errors_of_pyright(folder, "standard", reportUnusedExpression=False)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("checker", ["by_mypy", "by_pyright"])
def test_what_the_docs_show_is_right(checker: str, request: pytest.FixtureRequest) -> None:
    found: Errors = request.getfixturevalue(checker)
    assert {name: errors for name, errors in found.items() if name in OF_DOCS} == {}
