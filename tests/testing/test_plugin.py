"""The pytest plugin, as a user's project has it: each test runs pytest in a project of its own."""

from __future__ import annotations

import pytest
from places import ROOT

import lockkit
import lockkit.aio
from lockkit.testing.plugin import HoldLock
from lockkit.testing.servers import ZooKeeperServer

pytest_plugins = ["pytester"]

PLUGIN = ("-p", "lockkit.testing.plugin", "-p", "no:cacheprovider", "-p", "no:randomly")


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    for variable in ("LOCKKIT_URL", "DJANGO_SETTINGS_MODULE", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(pytester.path / "state"))
    pytester.makeini(
        "[pytest]\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n"
    )
    return pytester


def passes(project: pytest.Pytester, number: int, *arguments: str) -> None:
    plugin = () if _is_installed(project) else PLUGIN[:2]
    result = project.runpytest_subprocess(*plugin, *PLUGIN[2:], *arguments)
    result.assert_outcomes(passed=number)


def _is_installed(project: pytest.Pytester) -> bool:
    from importlib.metadata import entry_points

    return any(p.value == "lockkit.testing.plugin" for p in entry_points(group="pytest11"))


def test_core(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import threading
        import lockkit
        import pytest

        def deduct(timeout=0):
            locks = lockkit.connect()
            with locks.lock("stock:42", timeout=timeout):
                return "deducted"

        def test_busy(lockkit_memory, hold_lock):
            with hold_lock("stock:42") as held:
                with pytest.raises(lockkit.LockHeld) as caught:
                    deduct()
                assert caught.value.holder.host == "another-host"
                info = lockkit_memory.inspect("stock:42")
                assert info.fence == held.fencing_token
                assert info.owner.label == "hold_lock"
            assert deduct() == "deducted"

        def test_held_until_it_is_released(lockkit_memory, hold_lock):
            held = hold_lock("stock:42")
            results = []
            waiting = threading.Thread(target=lambda: results.append(deduct(timeout=10)))
            waiting.start()
            while not lockkit_memory.inspect("stock:42").waiters:
                pass
            assert held.release() is True
            assert held.release() is False
            waiting.join()
            assert results == ["deducted"]

        def test_each_test_has_a_fresh_store(lockkit_memory):
            assert list(lockkit_memory.holders()) == []

        def test_what_the_test_forgets_is_released(lockkit_memory, hold_lock):
            hold_lock("stock:42")

        def test_held_already(lockkit_memory, hold_lock):
            hold_lock("stock:42")
            with pytest.raises(lockkit.LockHeld, match="another-host"):
                hold_lock("stock:42")

        def test_wrong_names_and_aliases(lockkit_memory, hold_lock):
            with pytest.raises(lockkit.InvalidName):
                hold_lock("")
            with pytest.raises(lockkit.ConfigurationError, match="client="):
                hold_lock("stock:42", alias="reports")
        """
    )
    passes(project, 6)


def test_what_was_held_has_no_session_of_its_own(project: pytest.Pytester) -> None:
    """It would live for ten minutes, and a server has a limit of sessions for each address."""
    with ZooKeeperServer() as server:
        project.makepyfile(
            f"""
            import asyncio
            import threading
            import pytest
            import lockkit
            import lockkit.aio

            def has_sessions():
                return any("session" in thread.name for thread in threading.enumerate())

            def test_sync(hold_lock):
                with lockkit.connect({server.url!r}) as client:
                    for _ in range(2):
                        with hold_lock("stock:42", client=client):
                            pass
                assert not has_sessions()

            @pytest.mark.parametrize("is_free", [True, False])
            def test_async(hold_lock, is_free):
                async def play():
                    async with lockkit.aio.connect({server.url!r}) as client:
                        if is_free:
                            return hold_lock("stock:42", client=client)
                        async with client.lock("stock:42"):
                            with pytest.raises(lockkit.LockHeld):
                                hold_lock("stock:42", client=client)

                held = asyncio.run(play())
                if is_free:
                    assert has_sessions()
                    assert held.release()
                assert not has_sessions()
            """
        )
        passes(project, 3)


@pytest.mark.parametrize("store", ["", "postgres_url"], ids=["a file of SQLite's own", "sessions"])
async def test_what_was_held_ends_nothing_of_an_asyncio_client(
    store: str, hold_lock: HoldLock, request: pytest.FixtureRequest
) -> None:
    url = f"{request.getfixturevalue(store)}?mode=advisory" if store else "sqlalchemy+sqlite://"
    async with lockkit.aio.connect(url) as client, client.lock("stock:1"):
        with hold_lock("stock:2", client=client):
            with pytest.raises(lockkit.LockHeld):
                hold_lock("stock:1", client=client)
            assert await client.lock("stock:2").try_acquire() is None
        assert await client.lock("stock:1").try_acquire() is None


def test_nothing_is_left_of_a_decorated_function(project: pytest.Pytester) -> None:
    """It has a client of its own, with a thread, for each URL."""
    project.makepyfile(
        """
        import gc
        import lockkit

        @lockkit.locked("stock:42")
        def deduct():
            pass

        def test_one(lockkit_memory):
            deduct()

        def test_another():
            gc.collect()
            assert not [c for c in gc.get_objects() if isinstance(c, lockkit.LockClient)]
        """
    )
    passes(project, 2)


def test_a_client_of_any_store(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import asyncio
        import lockkit
        import lockkit.aio

        def test_sync(hold_lock, tmp_path):
            for url in ("memory://", f"sqlite:///{tmp_path}/locks.sqlite3"):
                locks = lockkit.connect(url)
                with hold_lock("stock:42", client=locks):
                    assert locks.lock("stock:42").try_acquire() is None
                locks.lock("stock:42").try_acquire().release()
                locks.close()

        def test_async(hold_lock, tmp_path):
            async def play(url):
                locks = lockkit.aio.connect(url)
                with hold_lock("stock:42", client=locks):
                    assert await locks.lock("stock:42").try_acquire() is None
                await (await locks.lock("stock:42").try_acquire()).release()
                await locks.close()

            for url in ("memory://", f"sqlite:///{tmp_path}/locks.sqlite3"):
                asyncio.run(play(url))
        """
    )
    passes(project, 2)


def test_other_kinds_of_locks(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import asyncio
        import lockkit
        import lockkit.aio
        import pytest

        @pytest.fixture(params=["memory", "sqlite"])
        def url(request, tmp_path):
            path = f"{tmp_path}/locks.sqlite3"
            return {"memory": f"memory://{path}", "sqlite": f"sqlite:///{path}"}[request.param]

        @pytest.fixture
        def locks(url):
            with lockkit.connect(url) as client:
                yield client

        def test_reentrant(locks, hold_lock):
            lock = locks.lock("a", reentrant=True)
            with hold_lock("a", kind="reentrant", client=locks) as held:
                assert lock.try_acquire() is None
                with pytest.raises(lockkit.LockHeld):
                    hold_lock("a", kind="reentrant", client=locks)
                assert held.release()
            lock.try_acquire().release()

        def test_a_permit_each(locks, hold_lock):
            semaphore = locks.semaphore("a", 2)
            with hold_lock("a", kind="semaphore", permits=2, client=locks):
                semaphore.try_acquire().release()
                with hold_lock("a", kind="semaphore", permits=2, client=locks):
                    assert semaphore.try_acquire() is None

        def test_readers_and_a_writer(locks, hold_lock):
            lock = locks.rwlock("a")
            with hold_lock("a", kind="read", client=locks):
                lock.read().try_acquire().release()
                assert lock.write().try_acquire() is None
            with hold_lock("a", kind="write", client=locks):
                assert lock.read().try_acquire() is None

        def test_of_asyncio(url, hold_lock):
            async def play():
                async with lockkit.aio.connect(url) as locks:
                    with hold_lock("a", kind="reentrant", client=locks):
                        assert await locks.lock("a", reentrant=True).try_acquire() is None

            asyncio.run(play())

        def test_wrong_kinds(locks, hold_lock):
            for wrong in ({"kind": "rw"}, {"permits": 2}, {"kind": "semaphore"}):
                with pytest.raises(lockkit.ConfigurationError):
                    hold_lock("a", client=locks, **wrong)
            assert not [*locks.holders()]
        """
    )
    passes(project, 10)


def test_where_locks_are_reentrant_within_a_process_only(
    project: pytest.Pytester, postgres_url: str
) -> None:
    project.makepyfile(
        f"""
        import lockkit
        import pytest

        def test_busy(hold_lock):
            with lockkit.connect("{postgres_url}?mode=advisory") as locks:
                with hold_lock("a", kind="reentrant", client=locks):
                    assert locks.lock("a", reentrant=True).try_acquire() is None
                locks.lock("a", reentrant=True).try_acquire().release()
                with pytest.raises(lockkit.UnsupportedCapability):
                    hold_lock("a", kind="read", client=locks)
        """
    )
    passes(project, 1)


DJANGO_SETTINGS = """
SECRET_KEY = "for tests only"
ROOT_URLCONF = "urls"
ALLOWED_HOSTS = ["*"]
INSTALLED_APPS = ["lockkit_django"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
LOCKKIT = {"default": {"LOCATION": "sqlite:////nowhere/at/all", "KEY_PREFIX": "shop"}}
LOCKKIT_VIEWS = {"TIMEOUT": 0}
"""

DJANGO_URLS = """
from django.http import HttpResponse
from django.urls import path
from lockkit_django import lock_view

@lock_view("stock:{sku}")
def deduct(request, sku):
    return HttpResponse("deducted")

@lock_view("stock:{sku}")
async def adeduct(request, sku):
    return HttpResponse("deducted")

urlpatterns = [path("stock/<int:sku>", deduct), path("async/<int:sku>", adeduct)]
"""


def test_django(project: pytest.Pytester) -> None:
    project.makepyfile(shop_settings=DJANGO_SETTINGS, urls=DJANGO_URLS)
    project.makepyfile(
        """
        import asyncio
        import pytest

        def test_busy(client, lockkit_memory, hold_lock):
            with hold_lock("stock:42"):
                assert client.get("/stock/42").status_code == 423
                assert client.get("/stock/43").status_code == 200
                assert lockkit_memory.inspect("stock:42").owner.host == "another-host"
            assert client.get("/stock/42").status_code == 200

        def test_async(async_client, lockkit_memory, hold_lock):
            async def play():
                with hold_lock("stock:42"):
                    assert (await async_client.get("/async/42")).status_code == 423
                assert (await async_client.get("/async/42")).status_code == 200
            asyncio.run(play())

        def test_without_the_fixture_the_settings_count():
            from lockkit_django import locks
            assert locks["default"].settings.location == "sqlite:////nowhere/at/all"
        """
    )
    passes(project, 3, "--ds=shop_settings", "-o", "pythonpath=.")


def test_flask(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import pytest
        from flask import Flask
        from lockkit_flask import LockKit, lock_view

        @pytest.fixture
        def app(lockkit_memory):
            app = Flask("shop")
            app.config["LOCKKIT_VIEWS"] = {"TIMEOUT": 0}
            LockKit(app)

            @app.get("/stock/<sku>")
            @lock_view("stock:{sku}")
            def deduct(sku):
                return "deducted"

            return app

        def test_busy(app, hold_lock):
            client = app.test_client()
            with hold_lock("stock:42", app=app):
                assert client.get("/stock/42").status_code == 423
            assert client.get("/stock/42").status_code == 200

        def test_busy_in_an_app_context(app, hold_lock):
            with app.app_context(), hold_lock("stock:42"):
                assert app.test_client().get("/stock/42").status_code == 423
        """
    )
    passes(project, 2)


FACTORY = """
from flask import Flask
from lockkit_flask import LockKit, lock_view

lock_kit = LockKit()

def create_app():
    app = Flask("shop")
    app.config["LOCKKIT"] = {"default": {"KEY_PREFIX": "shop"}}
    lock_kit.init_app(app)

    @app.post("/stock/<sku>")
    @lock_view("stock:{sku:str}", timeout=0)
    def deduct(sku):
        return "deducted"

    return app
"""
FIXTURES = """
import pytest
from shop import create_app

@pytest.fixture(scope=SCOPE)
def app():
    app = create_app()
    app.testing = True
    return app

@pytest.fixture
def client(app):
    return app.test_client()
"""


def example(framework: str) -> str:
    """The first one after that word in docs/testing.md."""
    text = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8").partition(f"\n{framework}")[2]
    return text.partition("```python\n")[2].partition("```")[0]


def test_the_example_of_the_docs_for_django(project: pytest.Pytester) -> None:
    atomic = 'DATABASES["default"]["ATOMIC_REQUESTS"] = True\n'
    project.makepyfile(
        example("In Django"), shop_settings=DJANGO_SETTINGS + atomic, urls=DJANGO_URLS
    )
    passes(project, 1, "--ds=shop_settings", "-o", "pythonpath=.")


def test_without_its_app_it_does_not_lock_elsewhere(project: pytest.Pytester) -> None:
    """In the file of this user, where the app does not lock."""
    project.makepyfile(
        """
        import lockkit
        import pytest
        from flask import Flask
        from lockkit_flask import LockKit

        def test_forgotten(hold_lock, monkeypatch):
            monkeypatch.delenv("LOCKKIT_URL", raising=False)
            LockKit(Flask("shop"))
            with pytest.raises(lockkit.ConfigurationError, match="app="):
                hold_lock("stock:42")
        """
    )
    passes(project, 1)


def test_the_example_of_the_docs_over_a_factory_of_flask(project: pytest.Pytester) -> None:
    project.makeconftest(FIXTURES.replace("SCOPE", "'function'"))
    project.makepyfile(example("In Flask"), shop=FACTORY)
    passes(project, 1, "-o", "pythonpath=.")


@pytest.mark.parametrize("scope", ["function", "session"])
def test_an_app_that_was_made_before_the_fixture_says_so(
    project: pytest.Pytester, scope: str
) -> None:
    project.makeconftest(FIXTURES.replace("SCOPE", repr(scope)))
    project.makepyfile(
        """
        import lockkit
        import pytest

        def test_busy(client, lockkit_memory, hold_lock):
            with hold_lock("stock:42"):
                with pytest.raises(lockkit.ConfigurationError, match="name lockkit_memory first"):
                    client.post("/stock/42")

        def test_without_the_fixture(client):
            assert client.post("/stock/42").status_code == 200
        """,
        shop=FACTORY,
    )
    passes(project, 2, "-o", "pythonpath=.")


def test_an_app_that_is_made_on_import(project: pytest.Pytester) -> None:
    project.makeconftest(
        """
        from flask import Flask
        from lockkit_flask import LockKit

        shop = Flask("shop")
        LockKit(shop)
        """
    )
    project.makepyfile(
        """
        from conftest import shop

        def test_it(hold_lock):
            locks = shop.extensions["lockkit"]["default"]
            assert locks.settings.location == "memory://tests"
            with hold_lock("stock:42"):
                assert locks.lock("stock:42").try_acquire() is None
        """
    )
    passes(project, 1, "-o", "lockkit_url=memory://tests")


def test_the_plugin_alone_imports_no_framework_and_no_store(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import sys

        def test_it():
            assert "lockkit.testing.plugin" in sys.modules
            assert not {"django", "flask", "redis", "sqlalchemy"} & set(sys.modules)
        """
    )
    passes(project, 1, "-p", "no:django", "-p", "no:flask")
