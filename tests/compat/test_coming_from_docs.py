"""docs/coming-from.md: its Python runs, its Django project works, its table is whole."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
import redis_lock
import sherlock
from command_line import hold, until
from django_redis.client import DefaultClient
from places import ROOT

import lockkit
from lockkit.model.errors import AcquireTimeout

PAGE = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
URL, FILE = "redis://127.0.0.1:6379/0", "/var/lib/shop/"

BEFORE = {
    "settings.py": """
import os
SECRET_KEY = "x" * 60
REDIS_URL = os.environ["REDIS_URL"]
ROOT_URLCONF = "urls"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3",
    "OPTIONS": {"transaction_mode": "IMMEDIATE"}, "TEST": {"NAME": "test.sqlite3"}}}
INSTALLED_APPS = ["django.contrib.admin", "django.contrib.contenttypes", "django.contrib.auth",
    "django.contrib.sessions", "django.contrib.messages", "shop"]
MIDDLEWARE = ["django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware"]
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True,
    "OPTIONS": {"context_processors": ["django.template.context_processors.request",
        "django.contrib.auth.context_processors.auth",
        "django.contrib.messages.context_processors.messages"]}}]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
""",
    "urls.py": """
from django.contrib import admin
from django.urls import path
urlpatterns = [path("admin/", admin.site.urls)]
""",
    "shop/__init__.py": "",
    "shop/models.py": """
from django.db import models

class Stock(models.Model):
    sku = models.CharField(max_length=50)
    left = models.IntegerField(default=0)
""",
    "tests.py": """
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.core.cache import cache
from django.db import transaction
from django.db.models.signals import post_save
from django.test import TransactionTestCase
from lockkit.compat.redis import Lock
from lockkit_django import OpenTransaction, locks
from shop.models import Stock
from shop.stock import buy, restock

def held():
    return locks["default"].inspect("stock:A1") is not None

class Page(TransactionTestCase):
    def setUp(self):
        cache.clear()
        Stock.objects.create(sku="A1", left=5)

    def test_old_calls_and_new_ones_lock_the_same_key(self):
        with cache.lock("stock:A1", timeout=5) as lock:
            assert isinstance(lock, Lock) and lock.fencing_token
            assert locks["default"].lock("stock:A1").try_acquire() is None
        with locks["default"].lock("stock:A1"):
            assert not cache.lock("stock:A1", timeout=5).acquire(blocking=False)

    def test_what_the_page_locks_the_old_calls_lock_too(self):
        got = []
        def saved(sender, instance, **_):
            if sender is Stock:
                old = cache.lock(f"stock:{instance.sku}", timeout=5)
                got.append(old.acquire(blocking=False))
        post_save.connect(saved)
        self.addCleanup(post_save.disconnect, saved)
        self.client.force_login(User.objects.create_superuser("ann"))
        for sku in ("A:1", "50%", "\U0001f511"):
            stock = Stock(sku=sku, left=5)
            Stock.objects.bulk_create([stock])
            buy(sku)
            restock(sku, 10)
            change = f"/admin/shop/stock/{Stock.objects.get(sku=sku).pk}/change/"
            assert self.client.post(change, {"sku": sku, "left": 7}).status_code == 302
        assert got == [False] * 9, got

    def test_services(self):
        buy("A1")
        with transaction.atomic():
            restock("A1", 10)
            assert held()
            with self.assertRaises(OpenTransaction):
                locks["default"].lock("other").acquire()
        assert not held()
        assert Stock.objects.get().left == 14

    def test_the_admin(self):
        self.client.force_login(User.objects.create_superuser("ann"))
        while_saved = []
        def saved(sender, **_):
            if sender is LogEntry:  # written after save_model, in the same transaction
                while_saved.append((held(), transaction.get_connection().in_atomic_block))
        post_save.connect(saved)
        stock = Stock.objects.get()
        found = self.client.post(f"/admin/shop/stock/{stock.pk}/change/", {"sku": "A1", "left": 7})
        assert found.status_code == 302
        assert while_saved == [(True, True)]
        assert not held()
        action = {"action": "restock_by_ten", "_selected_action": [stock.pk]}
        self.client.post("/admin/shop/stock/", action)
        assert Stock.objects.get().left == 17
        assert not held()
""",
}


def test_every_block_runs(redis_url: str, tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    for block in BLOCKS:
        if not block.startswith("# "):
            text = block.replace(URL, redis_url).replace(FILE, f"{tmp_path}/")
            exec(compile(text, "docs/coming-from.md", "exec"), names)
    assert names["fence"] > 0
    names["client"].close()


def test_what_becomes_of_locked(redis_url: str) -> None:
    """A lease that expired is listed for a while, and nobody has the lock."""
    (expression,) = re.findall(r"^\| `locked\(\)` \|.*\| `([^`]*)` \|$", PAGE, re.MULTILINE)
    for url in (redis_url, f"{redis_url}?protocol=plain"):
        with lockkit.connect(url) as locks:
            hold(locks, "job", ttl=3.0)
            assert eval(expression, {"locks": locks, "name": "job"})
            until(lambda: (info := locks.inspect("job")) and info.state == "abandoned")
            assert not eval(expression, {"locks": locks, "name": "job"})


def test_the_blocks_for_django_are_a_project(redis_url: str, tmp_path: Path) -> None:
    files = dict(BEFORE)
    for block in BLOCKS:
        if block.startswith("# "):
            name = block.partition("\n")[0].removeprefix("# ")
            files[name] = files.get(name, "") + block
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    kept = {k: v for k, v in os.environ.items() if k not in {"PYTHONSAFEPATH", "LOCKKIT_URL"}}
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-m", "django", "test", "--noinput"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
        env={**kept, "DJANGO_SETTINGS_MODULE": "settings", "REDIS_URL": redis_url},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "Ran 4 tests" in ran.stderr


def test_the_table_has_every_argument_and_method() -> None:
    first, second = ([row.split("|")[place] for row in PAGE.splitlines() if row.startswith("|")]
                     for place in (1, 2))  # fmt: skip
    theirs, caches = " ".join(first), " ".join(second)
    arguments = {*_arguments(redis.Redis.lock), *_arguments(redis.lock.Lock.__init__)} - {"redis"}
    methods = [name for name, found in vars(redis.lock.Lock).items() if inspect.isfunction(found)]
    for name in [*arguments, *(name for name in methods if not name.startswith("_"))]:
        assert re.search(rf"`{name}\b", theirs), name
    for name in (*_arguments(redis.lock.Lock.acquire), *_arguments(redis.lock.Lock.extend)):
        assert re.search(rf"\b{name}\b", theirs), name
    for name in _arguments(DefaultClient.lock):
        assert re.search(rf"`{name}`", caches), name


def _arguments(method: Any) -> list[str]:
    return [name for name in inspect.signature(method).parameters if name != "self"]


@pytest.fixture
def client(redis_url: str) -> Any:
    with redis.Redis.from_url(redis_url, socket_timeout=10) as made:
        yield made


def test_python_redis_lock_and_plain_keys_exclude_one_another(
    client: redis.Redis, redis_url: str
) -> None:
    with lockkit.connect(f"{redis_url}?protocol=plain", key_prefix="lock:") as locks:
        with redis_lock.Lock(client, "stock:42", expire=30):
            assert locks.lock("stock:42").try_acquire() is None
        with locks.lock("stock:42"):
            assert not redis_lock.Lock(client, "stock:42", expire=30).acquire(blocking=False)


def test_a_waiter_of_python_redis_lock_hears_late_of_a_lockkit_holder(
    client: redis.Redis, redis_url: str
) -> None:
    with (
        lockkit.connect(f"{redis_url}?protocol=plain", key_prefix="lock:") as locks,
        ThreadPoolExecutor() as threads,
    ):
        lease = locks.lock("stock:42").acquire()
        theirs = redis_lock.Lock(client, "stock:42", expire=2)
        started = time.monotonic()
        waiting = threads.submit(theirs.acquire)
        while not client.client_list(_type="normal") or not _blocked(client):
            time.sleep(0.01)
        lease.release()
        assert waiting.result(20) is True
        assert time.monotonic() - started >= 1.9
        theirs.release()


def _blocked(client: redis.Redis) -> int:
    return int(client.info("clients")["blocked_clients"])


def test_sherlock_and_plain_keys_exclude_one_another(client: redis.Redis, redis_url: str) -> None:
    theirs = sherlock.RedisLock("stock:42", namespace="shop", client=client, expire=30)
    with lockkit.connect(f"{redis_url}?protocol=plain", key_prefix="shop_") as locks:
        with theirs:
            assert locks.lock("stock:42").try_acquire() is None
        with locks.lock("stock:42"):
            assert theirs.acquire(blocking=False) is False
    for _ in range(2):  # both hold it
        endless = sherlock.RedisLock("stock:42", namespace="shop", client=client, expire=None)
        assert endless.acquire(blocking=False)


OF_FILELOCK = """
import sys
import filelock

lock = filelock.FileLock(sys.argv[1])
assert lock.timeout == -1
with lock, lock:
    assert lock.is_locked
assert issubclass(filelock.Timeout, TimeoutError)
assert filelock.ReadWriteLock
"""


def test_what_is_said_of_filelock(tmp_path: Path) -> None:
    """In a process of its own, which filelock audits from then on: that makes each
    ``sys._getframe`` slow, and the tests of interrupts twice as expensive."""
    subprocess.run([sys.executable, "-c", OF_FILELOCK, tmp_path / "report.lock"], check=True)
    assert issubclass(AcquireTimeout, TimeoutError)
