"""The pytest plugin: a store in memory, and names that another process seems to hold.

It is active wherever lockkit is installed, and imports lockkit only in the tests that ask for it.

``lockkit_memory`` makes the default alias a fresh store in memory for one test. This applies to
``lockkit.connect()``, to ``lockkit_django.locks`` and ``alocks``, and to every Flask app that is
made during the test, so name it before the app. For a Flask app that is made on import, or once for
all tests, put the URL into the configuration in its place::

    [tool.pytest.ini_options]
    lockkit_url = "memory://tests"

``hold_lock`` holds a name as another process would, so that the code under test finds it busy::

    def test_busy(lockkit_memory, client, hold_lock):
        with hold_lock("stock:42"):
            assert client.post("/stock/42").status_code == 423
        assert client.post("/stock/42").status_code == 200

Without ``with`` it is held until ``release()`` or the end of the test; in ZooKeeper and in sessions
of a database at most until that client is closed. It uses the store of the current Flask app, else
that of Django, else that of ``lockkit.connect()``; ``app=``, ``client=`` and ``alias=`` choose
another. ``kind=`` and ``permits=`` are those of ``multi``, and each call holds one permit.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Self

import pytest

if TYPE_CHECKING:
    from flask import Flask

    from lockkit.aio import AsyncLockClient
    from lockkit.leases.client import LockClient
    from lockkit.model.types import Request

    _Client = LockClient | AsyncLockClient

URL_VARIABLE = "LOCKKIT_URL"
HELD_SECONDS = 600.0
"""Seconds a name stays held if the test is killed before it can release it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("lockkit_url", "URL of the default lock alias during the tests", default="")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Runs before any conftest is read, because a conftest may make an app."""
    url: str = early_config.getini("lockkit_url")
    if url:
        os.environ[URL_VARIABLE] = url


@pytest.fixture
def lockkit_memory() -> Iterator[LockClient]:
    """The default alias is a fresh store in memory; this is a client of it."""
    url = f"memory://test-{secrets.token_hex(8)}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(URL_VARIABLE, url)
        _forget_clients()
        with _refusing_older_apps(url):
            yield _default_client()
    _forget_clients()
    from lockkit.leases.default_locked import forget_client

    forget_client(url)


@contextmanager
def _refusing_older_apps(url: str) -> Iterator[None]:
    """Refuse requests to apps of Flask that have read other settings before."""
    flask = sys.modules.get("flask")
    if flask is None:
        yield
        return

    def refuse(app: Flask, **_: object) -> None:
        locks = app.extensions.get("lockkit")
        if locks is not None and locks["default"].settings.location != url:
            from lockkit.model.errors import ConfigurationError

            raise ConfigurationError(
                f"the app {app.name!r} was made before lockkit_memory, so its locks are elsewhere: "
                "name lockkit_memory first, or in the app's fixture. For an app that is made once "
                "for all tests, set lockkit_url in the configuration of pytest, and leave "
                "lockkit_memory out"
            )

    with flask.request_started.connected_to(refuse):
        yield


class HoldLock:
    """The fixture ``hold_lock``: call it to hold a name, at most until the end of the test."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def __call__(
        self,
        name: str,
        *,
        alias: str = "default",
        client: _Client | None = None,
        app: Flask | None = None,
        kind: str = "mutex",
        permits: int | None = None,
    ) -> HeldLock:
        """Hold a name. Raises LockHeld if somebody has it, ConfigurationError, BackendError.

        kind: "mutex", "reentrant", "read", "write", or "semaphore" with ``permits``, of which this
        holds one. Choose what the code under test asks for: another kind raises KindMismatch."""
        found = _client(alias, client, app)
        held = HeldLock(found, _request(found, name, kind, permits))
        self._stack.callback(held.release)
        return held


@pytest.fixture
def hold_lock() -> Iterator[HoldLock]:
    """Hold names as another process would, at most until the end of the test."""
    with ExitStack() as stack:
        yield HoldLock(stack)


class HeldLock:
    """A name that another process holds, as far as the code under test can see."""

    def __init__(self, client: _Client, request: Request) -> None:
        from lockkit.model.errors import LockHeld
        from lockkit.model.types import Busy, Grant, Owner

        self._store, self._perform, self._close = _performer(client)
        self._request = request
        self.name = name = request.name
        with ExitStack() as failed:
            failed.callback(self._close)
            reply = self._perform(self._store.acquire(request))
            if not isinstance(reply, Grant):
                holder = Owner.decode(reply.holder) if isinstance(reply, Busy) else None
                raise LockHeld(f"{name!r} is held already, by {holder}", name=name, holder=holder)
            failed.pop_all()
        self.fencing_token = reply.fence
        self.released = False

    def release(self) -> bool:
        """Release the name. False if it was not held any more."""
        from lockkit.model.types import Release

        if self.released:
            return False
        self.released = True
        try:
            return self._perform(self._store.release(self._request)) is Release.RELEASED
        finally:
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _performer(client: _Client) -> tuple[Any, Callable[[Any], Any], Callable[[], object]]:
    """The store, what performs its steps, and what is to be called after the last one. Over the
    client's own wire, if that is blocking: one of ours may have a session of its own (ZooKeeper).
    What an asyncio client has is not closed: a store that it does not share is made and closed."""
    from lockkit.leases.client import LockClient
    from lockkit.runtime.run import run

    if isinstance(client, LockClient):
        return client.store, client.perform, lambda: None
    store = client.store.for_asyncio()
    wire = store.wire()
    close = wire.close if store is not client.store else lambda: None
    return store, lambda step: run(step, wire), close


def _request(client: _Client, name: str, kind: str, permits: int | None) -> Request:
    from lockkit.leases.lock import REENTERED
    from lockkit.model.checks import check_kind
    from lockkit.model.names import check_name
    from lockkit.model.types import Kind, Owner, Request
    from lockkit.runtime.process import new_token
    from lockkit.stores.contract import Reentrant

    check_kind(kind, permits)
    usage = client._usage(kind, {}, permits or 0)
    if usage.kind is Kind.REENTRANT and not isinstance(client.store, Reentrant):
        usage = usage._replace(kind=Kind.MUTEX)
    owner = Owner("another-host", 1, "MainThread", "hold_lock")
    return Request(
        check_name(name),
        new_token(),
        HELD_SECONDS,
        owner.encode(),
        kind=usage.kind,
        permits=usage.permits,
        shared=usage.shared,
        entrant=new_token() if usage.kind in REENTERED else "",
    )


def _client(alias: str, client: _Client | None, app: Flask | None) -> _Client:
    return client or _flask_client(alias, app) or _django_client(alias) or _default_client(alias)


def _default_client(alias: str = "default") -> LockClient:
    import lockkit

    if alias != "default":
        raise lockkit.ConfigurationError(
            f"hold_lock has no alias {alias!r} without Django or a Flask app: give it client="
        )
    if _is_of_flask() and URL_VARIABLE not in os.environ:
        raise lockkit.ConfigurationError(
            "hold_lock does not know whose lock it is: give it app=, or client="
        )
    return _django_client(alias) or lockkit.connect()


def _is_of_flask() -> bool:
    """Whether this process has a Flask app with LockKit, and no Django."""
    from lockkit.leases import default_store

    return default_store.adapter == "lockkit_flask"


def _flask_client(alias: str, app: Flask | None) -> LockClient | None:
    if app is None and not _current_app_has_locks():
        return None
    from lockkit_flask.state import app_locks

    return app_locks(app)[alias]


def _current_app_has_locks() -> bool:
    flask = sys.modules.get("flask")
    return bool(flask and flask.has_app_context() and "lockkit" in flask.current_app.extensions)


def _django_client(alias: str) -> LockClient | None:
    if not _django_has_locks():
        return None
    from lockkit_django.leases.client import locks

    return locks[alias]


def _forget_clients() -> None:
    """Close Django's clients, which have the old settings; new ones read the settings again."""
    if _django_has_locks():
        from lockkit_django.leases.client import reset

        reset()


def _django_has_locks() -> bool:
    registry = sys.modules.get("django.apps")
    return bool(
        registry and registry.apps.apps_ready and registry.apps.is_installed("lockkit_django")
    )
