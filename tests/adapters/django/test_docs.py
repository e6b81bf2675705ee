"""The blocks of docs/django.md are the files of a project, and the page's own tests pass in it.
The block of docs/stores.md for Django is one of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from places import ROOT

import lockkit_django

PAGE = ROOT / "docs" / "django.md"
STORES = ROOT / "docs" / "stores.md"
CURL = re.compile(r'^\$ T=(\w+) .*\n\$ curl .*/stock/A1/deduct -b (\S+) -H "(.*)"$', re.MULTILINE)
BEFORE = """
SECRET_KEY = "x"
ROOT_URLCONF = "urls"
SQLITE = {"ENGINE": "django.db.backends.sqlite3", "NAME": "db"}
DATABASES = {"default": {**SQLITE, "ATOMIC_REQUESTS": True}}
MIDDLEWARE = ["django.middleware.csrf.CsrfViewMiddleware"]
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "shop"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
"""
AFTER = """
import asyncio
from concurrent.futures import ThreadPoolExecutor
from django.contrib.auth.models import AnonymousUser, User
from django.http import HttpResponse
from django.test import Client, RequestFactory
from lockkit_django import lock_view
from shop.more import Count, Restock, checkout
from shop.nightly import report, report_async
from shop.shelves import Shelf, sell
from shop.stocktaking import stocktaking

class Others(TestCase):
    def test_the_other_blocks(self):
        for view in (Restock, Count):
            assert view.as_view()(RequestFactory().post("/"), sku="A1").status_code == 200
        for user, status in (AnonymousUser(), 403), (User(pk=7), 200):
            request = RequestFactory().post("/")
            request.auser = lambda: asyncio.sleep(0, user)
            assert asyncio.run(checkout(request)).status_code == status
        assert report("monday") == asyncio.run(report_async("tuesday")) == "made"
        Stock.objects.create(sku="A1", left=1)
        stocktaking()
        assert Stock.objects.get().left == 10
        Shelf.objects.create(sku="A1", count=2)
        sell("A1")
        assert (Shelf.objects.get().count, Shelf.objects.get().fence > 0) == (1, True)

    def test_a_service_enters_the_reentrant_lock_of_its_view(self):
        @lock_view("stock:C1", kind="reentrant")
        def view(request):
            with locks["default"].lock("stock:C1", reentrant=True, until="commit"):
                return HttpResponse()
        assert view(RequestFactory().post("/")).status_code == 200

    def test_the_request_of_the_page(self):
        Stock.objects.create(sku="A1", left=1)
        cookie, header = COOKIE.replace("$T", TOKEN), HEADER.replace("$T", TOKEN)
        headers = {"Cookie": cookie, **dict([header.split(": ")])}
        client = Client(enforce_csrf_checks=True)
        assert client.post("/stock/A1/deduct").status_code == 403
        assert client.post("/stock/A1/deduct", headers=headers).json() == {"left": 0}

    def test_a_refusal_is_logged(self):
        with ThreadPoolExecutor() as threads:  # of somebody else's lock
            lease = threads.submit(locks["default"].lock("stock:B1").acquire).result()
        with lease, self.settings(LOCKKIT_VIEWS={"TIMEOUT": 0}):
            assert self.client.post("/stock/B1/deduct").status_code == 423
"""


def test_the_page_is_a_project(tmp_path: Path) -> None:
    files = {"settings.py": BEFORE, "shop/__init__.py": ""}
    text = PAGE.read_text() + STORES.read_text()
    for block in re.findall(r"^```python\n(# .*?)^```", text, re.DOTALL | re.MULTILINE):
        name = block.partition("\n")[0].removeprefix("# ")
        files[name] = files.get(name, "") + block
    token, cookie, header = CURL.findall(PAGE.read_text())[0]
    files["tests.py"] += f"TOKEN, COOKIE, HEADER = {(token, cookie, header)}\n{AFTER}"
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"}
    environ = {"DJANGO_SETTINGS_MODULE": "settings", "LOCKKIT_URL": "memory://docs"}
    process = subprocess.run(
        [sys.executable, "-W", "error", "-m", "django", "test", "--noinput"],
        cwd=tmp_path,
        env={**kept, **environ},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert "Ran 6 tests" in process.stderr
    assert "POST /stock/B1/deduct gets 423 lock-busy" in process.stderr  # by the page's LOGGING


def test_every_check_is_documented() -> None:
    root = Path(lockkit_django.__file__).parent
    source = "".join(each.read_text() for each in root.glob("*/*.py"))
    used = set(re.findall(r'"([EW]\d{3})"|lockkit\.(I\d{3})', source))
    assert used
    page = PAGE.read_text() + (PAGE.parent / "orders.md").read_text()
    assert [a or b for a, b in used if f"`lockkit.{a or b}`" not in page] == []
