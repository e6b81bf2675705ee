"""What holds for the URL of every server: no unknown option, no secret shown, a password that may
change."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

import lockkit
from lockkit import aio
from lockkit.model.errors import ConfigurationError
from lockkit.stores.registry import SCHEMES

SECRET = "canary-7f3a"
HOSTS = {
    "redlock": "h1,h2,h3", "redlocks": "h1,h2,h3", "redis+sentinel": "h1,h2/shop",
    "rediss+sentinel": "h1,h2/shop", "redis+cluster": "h1,h2", "rediss+cluster": "h1,h2",
    "redis": "h/0", "rediss": "h/0", "zookeeper": "h1,h2/shop", "unix": "/run/redis.sock",
}  # fmt: skip
WITHOUT_SERVER = {"memory", "sqlite"}
OF_OTHERS = {"sqlalchemy", "django", "django-redis", "django-cache"}
"""Their URLs name an engine or an alias of somebody else's settings."""


def url_of(key: str, login: str = "") -> str:
    scheme, mark, query = key.partition("?")
    return f"{scheme}://{login}{HOSTS.get(scheme, 'h/shop')}{mark}{query}"


URLS = sorted(SCHEMES.keys() - WITHOUT_SERVER - OF_OTHERS)
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


@every_url
def test_unknown_options_are_refused(key: str) -> None:
    with pytest.raises(ConfigurationError, match="pasword"):
        lockkit.connect(url_of(key), options={"pasword": SECRET})
    url = url_of(key, f"shop:{SECRET}@")
    with pytest.raises(ConfigurationError) as refused:
        lockkit.connect(f"{url}{'&' if '?' in url else '?'}conect_timeout=3")
    assert SECRET not in str(refused.value)


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
        "postgresql:///shop?host=h1:{}&host=h2",
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


def test_a_name_of_memory_has_no_query() -> None:
    with pytest.raises(ConfigurationError, match="without a query"):
        lockkit.connect("memory://shop?tll=3")
