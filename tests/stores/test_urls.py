"""What holds for the URL of every server: no unknown option, no secret shown, a password that may
change."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

import django
import pytest
from cache_settings import cache
from database_settings import complete, mariadb, postgresql
from django.db import connections
from django.test import override_settings
from lock_tables import engine_for
from orders_django import mysql

import lockkit
from lockkit import aio
from lockkit.leases.elsewhere import ABLE
from lockkit.model.errors import BackendUnavailable, ConfigurationError
from lockkit.stores.contract import Store
from lockkit.stores.registry import SCHEMES
from lockkit_django import locks

__all__ = ["mysql"]

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "django_project.settings")
django.setup()

SECRET = "canary-7f3a"
HOSTS = {
    "redlock": "h1,h2,h3", "redlocks": "h1,h2,h3", "redis+sentinel": "h1,h2/shop",
    "rediss+sentinel": "h1,h2/shop", "redis+cluster": "h1,h2", "rediss+cluster": "h1,h2",
    "redis": "h/0", "rediss": "h/0", "zookeeper": "h1,h2/shop", "unix": "/run/redis.sock",
    "sqlalchemy": "", "django": "default", "django-redis": "default", "django-cache": "default",
}  # fmt: skip
WITHOUT_SERVER = {"memory", "sqlite"}
OF_OTHERS = {
    "sqlalchemy": ("postgres", "mariadb"), "django": ("postgres", "mariadb"),
    "django-redis": ("redis",), "django-cache": ("redis",),
}  # fmt: skip
"""Their URLs name an engine or an alias of somebody else's settings, for such a server."""

NOWHERE = {"postgres": "postgresql://postgres@h/shop", "redis": "redis://h:6379/0"}


class Given(Protocol):
    """Has the engine or the alias lead to a server, and returns the OPTIONS of the locks."""

    def __call__(self, scheme: str, url: str, user: str, password: str) -> dict[str, Any]: ...


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Iterator[Given]:
    with ExitStack() as stack:

        def given(scheme: str, url: str, user: str, password: str) -> dict[str, Any]:
            if scheme == "sqlalchemy":
                login = f"://{user}:{password}@"
                engine = engine_for(re.sub("://.*@", login, url))
                stack.callback(engine.dispose)
                return {"engine": engine}
            if scheme == "django":
                kind = mariadb if url.startswith("mysql") else postgresql
                place = {**kind(url), "USER": user, "PASSWORD": password}
                monkeypatch.setitem(connections.settings, "default", complete(place))
            else:
                port = urlsplit(url).port or 0
                entry = cache(scheme, port, f"{user}:{password}@")
                stack.enter_context(override_settings(CACHES={"default": entry}))
            return {}

        yield given


def url_of(key: str, login: str = "") -> str:
    scheme, mark, query = key.partition("?")
    return f"{scheme}://{login}{HOSTS.get(scheme, 'h/shop')}{mark}{query}"


URLS = sorted(SCHEMES.keys() - WITHOUT_SERVER - OF_OTHERS.keys())
every_url = pytest.mark.parametrize("key", URLS)


@every_url
@pytest.mark.parametrize("connect", [lockkit.connect, aio.connect])
def test_a_password_may_be_a_function(key: str, connect: Any) -> None:
    login = "" if key == "unix" else "shop@"
    client = connect(url_of(key, login), options={"password": lambda: SECRET})
    assert SECRET not in f"{client!r} {client.settings!r} {client.store!r}"


@every_url
def test_a_password_is_shown_nowhere(key: str) -> None:
    client = lockkit.connect(url_of(key, f"shop:{SECRET}@"))
    said = f"{client!r} {client.settings!r} {client.store!r} {client.lock('a')!r}"
    assert SECRET not in said + client.store.database()


@pytest.mark.parametrize("key", [*URLS, *OF_OTHERS])
def test_unknown_options_are_refused(key: str, given: Given) -> None:
    login, options = f"shop:{SECRET}@", {}
    if key in OF_OTHERS:
        login, options = "", given(key, NOWHERE[OF_OTHERS[key][0]], "shop", SECRET)
    with pytest.raises(ConfigurationError, match="no key 'pasword'"):
        lockkit.connect(url_of(key), options={**options, "pasword": SECRET})
    url = url_of(key, login)
    with pytest.raises(ConfigurationError) as refused:
        lockkit.connect(f"{url}{'&' if '?' in url else '?'}conect_timeout=3", options=options)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("driver", ["postgresql+asyncpg", "mysql+aiomysql", "mariadb+mysqldb3"])
def test_a_driver_that_is_never_used_is_not_to_be_installed(driver: str) -> None:
    with pytest.raises(ConfigurationError, match=r"names the driver .*: lockkit uses p") as refused:
        lockkit.connect(f"{driver}://h/shop")
    assert not isinstance(refused.value, lockkit.DriverMissing)


@pytest.mark.parametrize("trait", ABLE)
def test_an_error_names_the_stores_that_can_do_it(trait: type[Store]) -> None:
    named = set(re.findall(r"(\w+)://", ABLE[trait]))
    plain = SCHEMES["redis?protocol=plain"]
    able = {key for key in SCHEMES if issubclass(resolve_name(SCHEMES[key]), trait)}
    assert named == able & {*named, "zookeeper", "redlock"}
    assert ("without protocol=plain" in ABLE[trait]) is not issubclass(resolve_name(plain), trait)


@pytest.mark.parametrize("key", [key for key in URLS if key != "unix"])
def test_a_mistyped_address_is_a_wrong_setting(key: str) -> None:
    scheme, mark, query = key.partition("?")
    with pytest.raises(ConfigurationError) as refused:
        lockkit.connect(f"{scheme}://shop:{SECRET}@h:5432x/0{mark}{query}")
    assert SECRET not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://shop:p@ss:{}@h/shop",
        "mysql+pymysql://shop:p@ss:{}@h/shop",
        "sqlalchemy+mysql://shop:p@ss:{}@h/shop",
        "mysql://shop:p[{}]x@h/shop?mode=advisory",
        "mariadb://shop:p[{}@h/shop?mode=row",
        "postgresql://shop:\udcff{}@h/shop?mode=row",
        "postgresql://h/shop?mode={}",
        "postgresql://h/shop?password=a&{}=b",
        "postgresql://h/shop?mode=advisory&max_sessions={}",
        "mysql://h/shop?connect_timeout={}",
        "mysql://h/shop?ssl_ca=a&ssl_ca={}",
        "mysql://h/shop?ssl_mode={}",
        "mysql://h/shop?mode=row&ssl_mode={}",
        "redis://h/0?wait_replicas={}",
        "redis://h/0?client_name=a%20{}",
        "redis://h/0?protocol=plain&repair_missing_ttl={}",
        "rediss://h/0?ssl_cert_reqs={}",
        "redlock://h1,h2,h3?restart_delay={}",
    ],
)
def test_an_error_does_not_show_what_the_url_says(url: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        lockkit.connect(url.format(SECRET))
    assert SECRET not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("zookeeper://h", {"username": f"shop:{SECRET}"}),
        ("zookeeper://h", {"username": "shop", "acl": ("digest", f"shop:{SECRET}")}),
        ("zookeeper://h", {"ssl": True, "ssl_keyfile": SECRET.encode()}),
        ("rediss://h", {"ssl_certfile": "/x", "ssl_keyfile": SECRET.encode()}),
    ],
)
def test_nor_what_options_say(url: str, options: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError) as refused:
        lockkit.connect(url, options=options)
    assert SECRET not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize("option", ["read_timeout", "write_timeout", "connect_timeout"])
def test_a_value_that_the_driver_does_not_take_is_a_wrong_setting(option: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{option} of the URL must be 1 second or more"):
        lockkit.connect(f"mysql+pymysql://h/shop?{option}=0")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://shop:{}@h/shop",
        "postgresql://shop:{}@h/shop?mode=advisory",
        "postgresql://h/shop?password={}",
        "postgresql://h/shop?mode=row&password={}",
        "mysql://h/shop?passwd={}",
        "mysql://shop:{}@h/shop",
        "mysql://shop:{}@h/shop?mode=row",
        "redis://:{}@h",
        "redis+sentinel://:{}@h/shop",
        "redis+cluster://:{}@h",
        "redlock://:{}@h1,h2,h3",
        "zookeeper://shop:{}@h",
    ],
)
def test_a_password_is_said_once(url: str) -> None:
    """Nobody could tell which one is used."""
    with pytest.raises(ConfigurationError, match="password") as refused:
        lockkit.connect(url.format(SECRET), options={"password": "another"})
    assert SECRET not in "".join(traceback.format_exception(refused.value))


FAMILY = [
    "redis://h/", "rediss://h/", "unix:///run/redis.sock", "redis+sentinel://h1,h2/shop",
    "redis+cluster://h1,h2", "redlock://h1,h2,h3",
]  # fmt: skip


@pytest.mark.parametrize("url", FAMILY)
@pytest.mark.parametrize(
    "option", ["db", "username", "password", "ssl_ca_certs", "socket_timeout", "canary-7f3a"]
)
@pytest.mark.parametrize("sign", ["=", ""])
def test_an_empty_option_of_redis_is_not_its_default(url: str, option: str, sign: str) -> None:
    """As of a variable that was not filled in: redis-py would ignore the option."""
    named = "an option" if option == SECRET else f"'{option}'"
    with pytest.raises(ConfigurationError, match=f"^{named} in the URL is empty"):
        lockkit.connect(f"{url}?client_name=a&{option}{sign}")


TWICE = [
    "redis://h/1?db=2", "rediss://h/0?db=0", "redis://h?db=1&db=2", "unix:///s?db=1&db=2",
    "redis+sentinel://h1,h2/shop/1?db=2", "redis+cluster://h1?client_name=a&client_name=b", "redlock://a,b,c/1?db=2",
    f"redis://:{SECRET}@h?password={SECRET}", f"redis://{SECRET}@h?username=shop",
    f"redis://h?password={SECRET}&password=x", "redis://h?socket_timeout=1&socket_timeout=2",
    f"redis://h?{SECRET}=1&{SECRET}=2",
]  # fmt: skip


@pytest.mark.parametrize("url", TWICE)
def test_what_a_url_of_redis_says_twice_is_refused(url: str) -> None:
    """redis-py would take one of them."""
    with pytest.raises(ConfigurationError, match=r"^the URL says .* more than once") as refused:
        lockkit.connect(url)
    assert SECRET not in "".join(traceback.format_exception(refused.value))


class Guarded(NamedTuple):
    """A server that knows a user with the password SECRET."""

    url: str
    user: str


@pytest.fixture
def guarded(request: pytest.FixtureRequest) -> Iterator[Guarded]:
    url = str(request.getfixturevalue(f"{request.param}_url"))
    if request.param == "postgres":
        yield Guarded(url, "postgres")  # it takes any password
    elif request.param == "mariadb":
        server = request.getfixturevalue("mariadb_server")
        database = url.rpartition("/")[2]
        server.execute(f"GRANT ALL ON {database}.* TO app IDENTIFIED BY '{SECRET}'")
        yield Guarded(url, "app")
        server.execute("DROP USER app")
    else:
        with request.getfixturevalue("redis_server").client() as admin:
            admin.execute_command("ACL SETUSER", "app", "on", f">{SECRET}", "~*", "&*", "+@all")
            yield Guarded(url, "app")
            admin.execute_command("ACL DELUSER", "app")


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize(
    ("scheme", "guarded"),
    [(scheme, server) for scheme, servers in OF_OTHERS.items() for server in servers],
    indirect=["guarded"],
)
def test_a_password_of_others_is_shown_nowhere(
    scheme: str, guarded: Guarded, is_known: bool, given: Given, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither once it has been used nor where the server refuses the user."""
    caplog.set_level(logging.DEBUG)
    options = given(scheme, guarded.url, guarded.user if is_known else "nobody", SECRET)
    kept = {"LOCATION": url_of(scheme), "OPTIONS": options}
    with override_settings(LOCKKIT={"default": kept}):
        client = locks["default"]
        shown = [client, client.settings, client.store, client.store.database(), client.lock("a")]
        shown += [lockkit.connect(url_of(scheme), options=options)]
        shown += [aio.connect(url_of(scheme), options=options)]
        if is_known:
            client.store.create_table()
            with client.lock("a") as lease:
                shown += [lease, client.inspect("a"), client, client.store]
        else:
            with pytest.raises(BackendUnavailable) as refused:
                client.lock("a").acquire()
            shown += [refused.value, str(refused.value), refused.value.__cause__]
    assert SECRET not in f"{shown} {caplog.text}"


def test_a_name_of_memory_has_no_query() -> None:
    with pytest.raises(ConfigurationError, match="without a query"):
        lockkit.connect("memory://shop?tll=3")


async def test_a_host_that_cannot_be_a_name_cannot_be_reached() -> None:
    """As ``redis://${REDIS}.svc`` without the variable. Python does not raise an OSError for it."""
    with lockkit.connect("redis://.svc:6379") as client, pytest.raises(BackendUnavailable):
        client.lock("a").acquire()
    async with aio.connect("redis://.svc:6379") as tasks:
        with pytest.raises(BackendUnavailable):
            await tasks.lock("a").acquire()


@pytest.mark.parametrize(
    ("url", "driver"),
    [
        ("redis://host/0", "redis"),
        ("redlock://a,b,c", "redis"),
        ("zookeeper://host", "kazoo"),
        ("postgresql://host/shop", "sqlalchemy"),
        ("postgresql://host/shop?mode=advisory", "psycopg"),
        ("mysql://host/shop?mode=advisory", "pymysql"),
    ],
)
def test_a_driver_that_is_installed_and_broken_says_why(
    url: str, driver: str, tmp_path: Path
) -> None:
    (tmp_path / f"{driver}.py").write_text("raise ImportError('libssl.so.9 is missing')")
    program = (
        f"import sys, lockkit; sys.path.insert(0, {str(tmp_path)!r}); lockkit.connect({url!r})"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    told = ran.stderr.splitlines()[-1]
    assert "pip install 'lockkit[" in told
    assert told.endswith(" (libssl.so.9 is missing)")
