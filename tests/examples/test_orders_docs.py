"""docs/orders.md: its Python runs, and it names every setting. So does that of docs/adapters.md."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

from places import ROOT

from lockkit.orders import refusals, settings

TEXT = (ROOT / "docs" / "orders.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)

BEFORE = {
    "settings.py": """
from pathlib import Path
BASE_DIR = Path(__file__).parent
SECRET_KEY = "x" * 60
ROOT_URLCONF = "urls"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db",
    "OPTIONS": {"transaction_mode": "IMMEDIATE"}, "TEST": {"NAME": "test.db"}}}
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth",
    "django.contrib.sessions", "shop"]
MIDDLEWARE = ["django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
""",
    "urls.py": """
from django.urls import include, path
from rest_framework.routers import SimpleRouter
from shop import below, checkout
router = SimpleRouter()
router.register("baskets", below.Baskets, basename="basket")
urlpatterns = [path("checkout", checkout.checkout), path("below", below.checkout),
    path("orders", below.Orders.as_view()), path("ninja/", below.api.urls),
    path("upload", below.upload), path("", include(router.urls))]
""",
    "shop/__init__.py": "",
    "shop/payments.py": """
charged = []

def charge(*, idempotency_key):
    charged.append(idempotency_key)
    return f"charge-{idempotency_key}"
""",
    "shop/models.py": """
from django.db import models

class Order(models.Model):
    charge = models.CharField(max_length=50)
""",
    "tests.py": """
from django.contrib.auth.models import Permission, User
from django.test import TransactionTestCase
from lockkit import texts
from shop.models import Order
from shop.payments import charged

class Page(TransactionTestCase):
    def twice(self, path, **headers):
        return [self.client.post(path, {"sku": "A1", "order_id": "id-1"}, headers=headers,
            content_type="application/json") for _ in "12"]

    def check_once(self, path):
        first, again = self.twice(path, **{"Idempotency-Key": "id-1", "Authorization": "me"})
        assert first.status_code in (200, 201), first.content
        assert (again.status_code, again.content) == (first.status_code, first.content)
        assert again["Idempotent-Replayed"] == "true"
        assert Order.objects.count() == 1
        Order.objects.all().delete()

    def test_a_view_that_commits_itself(self):
        self.check_once("/checkout")
        assert set(charged) == {"id-1"}

    def test_below_the_checks(self):
        user = User.objects.create_user("ann")
        self.client.force_login(user)
        assert [found.status_code for found in self.twice("/below")] == [403, 403]
        user.user_permissions.add(Permission.objects.get(codename="add_order"))
        self.check_once("/below")
        assert self.client.post("/orders").status_code == 400  # it is required
        for path in ("/orders", "/baskets/7/checkout/", "/ninja/orders"):
            self.check_once(path)
        assert texts.catalogue("fr").text("order-running", {"seconds": 2}).title.startswith("Votre")
        answers = self.twice("/upload", **{"Idempotency-Key": "id-2"})
        assert [answer.headers.get("Idempotent-Replayed") for answer in answers] == [None, None]
""",
}


def test_the_engine_runs() -> None:
    text = (ROOT / "docs" / "adapters.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    exec(compile(block, "docs/adapters.md", "exec"), {})


def test_the_blocks_for_django_are_a_project(tmp_path: Path) -> None:
    (french,) = re.findall(r"^```text\n(# fr\.toml\n.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    files = BEFORE | {"fr.toml": french}
    for block in BLOCKS:
        if block.startswith("# "):
            name = block.partition("\n")[0].removeprefix("# ")
            files[name] = files.get(name, "") + block
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"}
    environ = {"DJANGO_SETTINGS_MODULE": "settings", "LOCKKIT_URL": "memory://docs"}
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-m", "django", "test", "--noinput"],
        cwd=tmp_path, env={**kept, **environ}, capture_output=True, text=True, timeout=110,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "Ran 2 tests" in ran.stderr


def test_every_refusal_is_there() -> None:
    documented = {
        code: status
        for codes, status in re.findall(r"^\| (`order-.*?) \| (\d+) \|", TEXT, re.MULTILINE)
        for code in re.findall(r"`(order-[a-z-]+)`", codes)
    }
    source = inspect.getsource(refusals)
    refused = re.findall(r'Refusal\((\d+), "(order-[a-z-]+)"', source)
    assert documented == {code: status for status, code in refused} | {refusals.COMPLETED: "409"}


def test_every_setting_is_there() -> None:
    documented = set(re.findall(r"^\| `([A-Z_]+)` \|", TEXT, re.MULTILINE))
    assert documented - {settings.SOURCE} == set(settings._CHECKS)
