"""Settings: what is accepted, and errors that name the key and the remedy."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lockkit
from lockkit import aio
from lockkit.model.errors import ConfigurationError, UnknownBackend
from lockkit.model.settings import read_settings, settings_from_url
from lockkit.stores.registry import load_store

SECRET = "canary-5f3a"


def read(mapping: Any, **environ: str) -> Any:
    return read_settings(mapping, default_location="memory://", environ=environ)


@pytest.mark.parametrize("nothing", [None, {}])
def test_nothing_configured_is_the_default_alias(nothing: Any) -> None:
    settings = read(nothing)
    assert list(settings) == ["default"]
    assert settings["default"].location == "memory://"
    assert settings["default"].ttl == 30
    assert settings["default"].acquire_timeout == 10
    assert settings["default"].max_hold == 600
    assert settings["default"].max_queue == 100


def test_every_key() -> None:
    alias = read(
        {
            "default": {},
            "reports": {
                "LOCATION": "redis://h/0",
                "BACKEND": "some.Backend",
                "KEY_PREFIX": "shop",
                "TTL": 5,
                "ACQUIRE_TIMEOUT": None,
                "MAX_HOLD": None,
                "MAX_QUEUE": None,
                "OPTIONS": {"x": 1},
            },
        }
    )["reports"]
    assert (alias.alias, alias.location, alias.backend) == (
        "reports",
        "redis://h/0",
        "some.Backend",
    )
    assert (alias.key_prefix, alias.ttl, alias.options) == ("shop", 5.0, {"x": 1})
    assert (alias.acquire_timeout, alias.max_hold, alias.max_queue) == (None, None, None)


def test_an_alias_may_be_a_bare_url() -> None:
    assert read({"default": "redis://h/1"})["default"].location == "redis://h/1"


def test_the_environment_relocates_the_default_alias_only() -> None:
    mapping = {
        "default": {"LOCATION": "redis://h/0", "TTL": 5, "OPTIONS": {"x": 1}},
        "other": "redis://h/1",
    }
    settings = read(mapping, LOCKKIT_URL="memory://")
    assert settings["default"].location == "memory://"
    assert settings["default"].ttl == 5
    assert settings["default"].options == {}
    assert settings["other"].location == "redis://h/1"


@pytest.mark.parametrize("place", ["environ", "url"])
def test_options_without_a_location_are_for_the_url_that_gives_it(place: str) -> None:
    mapping = {"default": {"KEY_PREFIX": "shop", "OPTIONS": {"wait_replicas": 1}}}
    given: Any = {"LOCKKIT_URL": "redis://h/2"} if place == "environ" else "redis://h/2"
    found = read_settings(mapping, default_location="memory://", **{"environ": {}, place: given})
    assert found["default"].location == "redis://h/2"
    assert found["default"].key_prefix == "shop"
    assert found["default"].options == {"wait_replicas": 1}


@pytest.mark.parametrize(
    ("url", "variable"),
    [
        (None, "memory://tests"),
        ("memory://tests", None),
        ("redis://h/2", "memory://tests"),
        ("redis://prod/0", "redis://staging/0"),  # a password is not for another server
    ],
)
def test_and_for_no_other(url: str | None, variable: str | None) -> None:
    environ = {} if variable is None else {"LOCKKIT_URL": variable}
    mapping = {"default": {"OPTIONS": {"password": "of the app's"}}}
    found = read_settings(mapping, default_location="memory://", environ=environ, url=url)
    assert found["default"].location == (variable or url)
    assert found["default"].options == {}


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ("redis://h", r"as in LOCKKIT = \{'default': 'redis://127.0.0.1:6379/0'\}"),
        ({"default": {"BACKEND": "redis"}}, r"not a dotted path; .*; leave it out if LOCATION"),
        ({"default": 5}, r"LOCKKIT\['default'\] must be a URL or a mapping, not int"),
        ({"default": {"TLL": 5}}, "no key 'TLL': did you mean 'TTL'"),
        ({"default": {"ttl": 5}}, "no key 'ttl': did you mean 'TTL'"),
        ({"default": {"max_holt": 5}}, "no key 'max_holt': did you mean 'MAX_HOLD'"),
        ({"other": {}}, "needs a LOCATION"),
        ({"defualt": "redis://h/0"}, "no alias 'default': is 'defualt' a misspelling"),
        ({"DEFAULT": "redis://h/0", "reports": "redis://h/1"}, "no alias 'default'"),
        ({"default": {"LOCATION": None}}, "needs a LOCATION"),
        ({"default": {"LOCATION": ["redis://h"]}}, r"\['LOCATION'\] is of type list; .* string"),
        ({"": "memory://"}, "an alias"),
        ({5: "memory://"}, "an alias"),
    ],
)
def test_wrong_mappings(mapping: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read(mapping)


def test_the_environment_may_give_the_default_alias() -> None:
    settings = read({"reports": "redis://h/1"}, LOCKKIT_URL="memory://elsewhere")
    assert settings["default"].location == "memory://elsewhere"
    assert settings["reports"].location == "redis://h/1"


NOT_A_NUMBER = float("nan")
WRONG_VALUES: dict[str, list[object]] = {
    "TTL": [0, -1, "30", None, True, NOT_A_NUMBER, float("inf"), 1e12],
    "ACQUIRE_TIMEOUT": [-1, "10", True, NOT_A_NUMBER, float("inf")],
    "MAX_HOLD": [-1, "600", NOT_A_NUMBER],
    "MAX_QUEUE": [-1, 1.5, "100", True],
    "KEY_PREFIX": ["a{b}", "é", "a\n", "x" * 65, 5, None],
    "BACKEND": ["nodot", 5],
    "OPTIONS": [[], "x", None],
}
WRONG = [(key, value) for key, values in WRONG_VALUES.items() for value in values]


@pytest.mark.parametrize(("key", "value"), WRONG)
def test_wrong_values_name_the_key_and_the_remedy(key: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=rf"LOCKKIT\['shop'\]\['{key}'\] is .*must be "):
        read({"shop": {"LOCATION": "memory://", key: value}})
    with pytest.raises(ConfigurationError, match="must be "):
        lockkit.connect("memory://", **{key.lower(): value})


def test_a_longest_hold_is_not_a_wait() -> None:
    with pytest.raises(ConfigurationError, match=r"it must be seconds, or None for no limit$"):
        read({"shop": {"LOCATION": "memory://", "MAX_HOLD": -1}})


ARGUMENTS = {"TTL": "ttl", "ACQUIRE_TIMEOUT": "timeout"}


@pytest.mark.parametrize(
    ("argument", "value"),
    [(ARGUMENTS[key], value) for key, value in WRONG if key in ARGUMENTS and value is not None],
)
def test_wrong_arguments_of_a_lock(argument: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=f"{argument} is "):
        lockkit.connect("memory://").lock("a", **{argument: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("digits", [400, 5000])
def test_more_seconds_than_a_float_can_be(digits: int) -> None:
    with pytest.raises(
        ConfigurationError, match=r"^ttl of connect\(\) is .*; it must be "
    ) as caught:
        lockkit.connect("memory://", ttl=10**digits)
    assert len(str(caught.value)) < 400
    with pytest.raises(ConfigurationError, match="timeout is "):
        lockkit.connect("memory://").lock("a", timeout=-(10**digits))


def test_an_unknown_option_of_connect() -> None:
    with pytest.raises(ConfigurationError, match="no option 'tlt': did you mean 'ttl'"):
        lockkit.connect("memory://", tlt=5)
    with pytest.raises(ConfigurationError, match="no option 'TTL': did you mean 'ttl'"):
        lockkit.connect("memory://", TTL=3)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match=r"it has [^.]*, ttl\. Options of the store"):
        lockkit.connect("memory://", password="secret")


def test_an_unknown_option_of_a_backend() -> None:
    with pytest.raises(ConfigurationError, match="no key 'size'"):
        lockkit.connect("memory://", options={"size": 5})


@pytest.mark.parametrize("url", ["redi://h", "nonsense://x"])
def test_an_unknown_scheme(url: str) -> None:
    with pytest.raises(UnknownBackend, match="no store has the scheme"):
        load_store(settings_from_url(url))


@pytest.mark.parametrize(
    ("location", "options", "said"),
    [
        ("nonsense://h", {}, "the URL"),
        ("nonsense", {}, "the URL"),
        ("redis://h:port", {}, "the URL"),
        ("memory://?mode=x", {}, "the URL"),
        ("postgresql://h/d?mode=x", {}, "the URL"),
        ("redlock://h1", {}, "the URL"),
        ("redis://h", {"nonsense": 1}, "OPTIONS of connect()"),
    ],
)
def test_errors_name_the_alias_or_the_url_if_there_is_none(
    location: str, options: dict[str, object], said: str
) -> None:
    settings = read({"default": {"LOCATION": location, "OPTIONS": options}})["default"]
    with pytest.raises(ConfigurationError, match="the lock alias 'default'"):
        load_store(settings)
    with pytest.raises(ConfigurationError) as caught:
        lockkit.connect(location, options=options)
    assert said in str(caught.value)
    assert "alias" not in str(caught.value)
    assert "LOCATION" not in str(caught.value)


@pytest.mark.parametrize("url", ["rediss//h", "", "memory", f"redis:/user:{'x' * 9}@h"])
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"^the URL (has no scheme|is empty); it looks like 'redis"
    ):
        lockkit.connect(url) if url else load_store(settings_from_url(url))


@pytest.mark.parametrize(
    "url", ["{}\n", "{}\r\n", " {}", "{} ", "{}\t", "{}\N{NO-BREAK SPACE}", "sq\0l{}", "a\nb{}"]
)
@pytest.mark.parametrize("bare", ["memory://x", "sqlite:////x", f"redis://:{SECRET}@h/0"])
def test_a_line_end_or_a_blank_is_not_part_of_a_place(
    url: str, bare: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from a file that ends in a newline: it would be another file, or another server."""
    url = url.format(bare)
    monkeypatch.setenv("LOCKKIT_URL", url.replace("\0", "\n"))  # no variable can have a zero
    for where, read_it in {
        "the URL": lambda: lockkit.connect(url),
        "LOCKKIT_URL": lambda: read({}, LOCKKIT_URL=url),
        "LOCKKIT_URL in the environment": lockkit.connect,
        r"LOCKKIT\['default'\]\['LOCATION'\]": lambda: read({"default": url}),
        r"LOCKKIT\['shop'\]\['LOCATION'\]": lambda: read({"shop": {"LOCATION": url}}),
    }.items():
        with pytest.raises(ConfigurationError, match=f"^{where} has white space") as refused:
            read_it()
        assert SECRET not in str(refused.value)
    with pytest.raises(ConfigurationError, match=r"^LOCKKIT_URL has"):
        read_settings({}, default_location="memory://", environ={}, url=url)


@pytest.mark.parametrize("url", ["redis://h:notaport/0", "redis://h/0?nosuchoption=1"])
def test_what_redis_does_not_understand(url: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a Redis URL"):
        lockkit.connect(url)


@pytest.mark.parametrize("url", ["oracle://h/d", "mssql+pyodbc://h/d"])
def test_another_database_is_told_which_ones_there_are(url: str) -> None:
    with pytest.raises(UnknownBackend, match=r"postgresql://.*mysql://.*django://"):
        lockkit.connect(url)


def test_the_scheme_of_postgresql_has_one_spelling() -> None:
    with pytest.raises(UnknownBackend, match="did you mean 'postgresql'"):
        lockkit.connect("postgres://h/d")


@pytest.mark.parametrize("url", ["postgresql://h/d", "mysql+pymysql://h/d", "mariadb://h/d"])
@pytest.mark.parametrize("how", ["in its URL", "in its options"])
def test_how_to_lock_in_a_database(url: str, how: str) -> None:
    def load(mode: str) -> object:
        if how == "in its URL":
            return load_store(settings_from_url(f"{url}?mode={mode}"))
        return load_store(settings_from_url(url, options={"mode": mode}))

    assert type(load("table")) is type(load_store(settings_from_url(url)))
    with pytest.raises(ConfigurationError, match=r"no mode .*; a database may have table"):
        load("tabel")
    with pytest.raises(ConfigurationError, match="has no mode"):  # of an unset variable
        load("")


@pytest.mark.parametrize("url", ["postgresql://h/d", "sqlalchemy://", "django://default"])
def test_a_mode_is_said_once(url: str) -> None:
    with pytest.raises(ConfigurationError, match="both say 'mode'"):
        lockkit.connect(f"{url}?mode=table", options={"mode": "advisory"})


def test_a_misspelt_scheme_is_corrected() -> None:
    with pytest.raises(UnknownBackend, match="did you mean 'redis'"):
        lockkit.connect("rediz://h")


@pytest.mark.parametrize("path", ["no.such.Backend", "lockkit.aio.Nothing", "lockkit.connect"])
def test_an_unknown_backend(path: str) -> None:
    with pytest.raises(UnknownBackend, match=path):
        lockkit.connect("memory://", backend=path)


def test_a_backend_by_its_path() -> None:
    client = lockkit.connect("", backend="lockkit.stores.memory.MemoryStore")
    with client.lock("a").acquire() as lease:
        lease.check()


@pytest.mark.parametrize("connect", [lockkit.connect, aio.connect])
def test_an_empty_url_is_a_setting_that_was_not_filled_in(
    connect: Callable[[str], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not lock in some other store."""
    monkeypatch.setenv("LOCKKIT_URL", "memory://")
    with pytest.raises(ConfigurationError, match="the URL is empty; it looks like 'redis"):
        connect("")


@pytest.mark.parametrize("connect", [lockkit.connect, aio.connect])
def test_an_empty_variable_is_an_error(
    connect: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from a variable of the shell that was not filled in."""
    monkeypatch.setenv("LOCKKIT_URL", "")
    with pytest.raises(ConfigurationError, match="LOCKKIT_URL is empty in the environment"):
        connect()
    with pytest.raises(ConfigurationError, match="LOCKKIT_URL is empty in the environment"):
        read_settings({}, default_location="memory://")


LOCKS = """
import asyncio, os, sys, warnings
import lockkit, lockkit.aio

@lockkit.locked("job")
def job() -> None: ...

@lockkit.locked("job")
async def coroutine() -> None: ...

with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    {0}
    lockkit.connect().close()
    lockkit.connect("memory://").close()
for warning in said:
    print(warning.category.__name__, os.path.basename(warning.filename), warning.message)
"""


@pytest.mark.parametrize(
    ("first", "place"),
    [
        ("lockkit.connect().close()", "<string>"),
        ("lockkit.aio.connect()", "<string>"),
        ("job()", "<string>"),
        ("asyncio.run(coroutine())", "events.py"),  # asyncio's
    ],
)
def test_without_a_url_it_says_where_once(first: str, place: str, tmp_path: Path) -> None:
    clean = {key: value for key, value in os.environ.items() if key != "LOCKKIT_URL"}
    program = [sys.executable, "-c", LOCKS.format(first)]
    environment = {**clean, "XDG_STATE_HOME": str(tmp_path)}
    said = subprocess.check_output(program, env=environment, text=True).splitlines()
    assert len(said) == 1
    assert said[0].startswith(f"RuntimeWarning {place}")
    path = f"sqlite:///{tmp_path}/lockkit/locks.sqlite3"
    assert f"LOCKKIT_URL is not set: locks are kept in {path}, which only" in said[0]
    chosen = {**environment, "LOCKKIT_URL": f"sqlite:///{tmp_path}/chosen.sqlite3"}
    assert subprocess.check_output(program, env=chosen, text=True) == ""


def test_the_environment_is_the_default_url(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LOCKKIT_URL", f"sqlite:///{tmp_path}/locks.sqlite3")
    assert lockkit.connect().settings.location == f"sqlite:///{tmp_path}/locks.sqlite3"
    assert lockkit.connect("memory://").settings.location == "memory://"


def test_the_embedded_default_is_a_file_of_the_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("LOCKKIT_URL", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.warns(RuntimeWarning, match="LOCKKIT_URL is not set"):
        client = lockkit.connect()
    with client.lock("a").acquire():
        assert list(tmp_path.rglob("*.sqlite3"))
    client.close()


def test_the_embedded_default_is_never_in_the_working_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two jobs that begin in two directories would not exclude one another."""
    monkeypatch.delenv("LOCKKIT_URL", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", "state")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.warns(RuntimeWarning, match=f"{tmp_path}/.local/state/lockkit/locks.sqlite3"):
        lockkit.connect().close()
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # there is neither HOME nor user
    with pytest.raises(lockkit.ConfigurationError, match="HOME"):
        lockkit.connect()
    chosen = tmp_path / "locks.sqlite3"
    with lockkit.connect(f"sqlite:///{chosen}") as client:
        assert client.lock("a").acquire().release()


URLS = [
    f"redis://:{SECRET}@127.0.0.1:1/0",
    f"redis://user:{SECRET}@127.0.0.1:1/0",
    f"redis://127.0.0.1:1/0?password={SECRET}",
    f"redis://a@b:{SECRET}@127.0.0.1:1/0",
    f"nosuch://user:{SECRET}@h",
    f"redis:/user:{SECRET}@h",
    f"redis://user:{SECRET}@h:notaport/0",
    f"redis://user:{SECRET}@h/0?nosuchoption=1",
    f"redis://127.0.0.1:1/0?password=p@{SECRET}",
]


@pytest.mark.parametrize("url", URLS)
def test_a_password_is_shown_nowhere(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    shown = []
    try:
        client = lockkit.connect(url)
        shown += [repr(client), repr(client.settings), str(client.settings), repr(client.store)]
        client.lock("a", timeout=0).acquire()
    except lockkit.LockError as error:
        while error is not None:
            shown += [str(error), repr(error)]
            error = error.__cause__  # type: ignore[assignment]
    assert shown
    assert SECRET not in "\n".join([*shown, caplog.text])


@pytest.mark.parametrize(
    "mapping",
    [
        URLS[0],
        {"default": [URLS[0]]},
        {"default": {"BACKEND": f"redis://:{SECRET}@some.host"}},
        {"default": {"LOCATION": "redis://h", "OPTIONS": f"password={SECRET}"}},
    ],
)
def test_a_url_in_the_wrong_place_is_not_shown(mapping: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(mapping)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("connect", [lockkit.connect, aio.connect])
def test_a_misspelt_option_is_told_with_the_right_one(connect: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"connect\(\) has no option 'tll'.*mean 'ttl'"):
        connect("memory://", tll=3)
    client = connect("memory://")
    for make, match in (
        (lambda: client.lock("a", timout=5), r"lock\(\) has no option 'timout'.*mean 'timeout'"),
        (lambda: client.lock("a", until="commit"), r"lock\(\) has no option 'until': it has fair"),
        (lambda: client.semaphore("a", 3, ownr=""), r"semaphore\(\) has no option 'ownr': it has"),
        (lambda: client.rwlock("a", tll=3), r"rwlock\(\) has no option 'tll'.*mean 'ttl'"),
        (lambda: client.multi("a", kind="read", tll=3), r"multi\(\) has no.*'tll'.*mean 'ttl'"),
        (
            lambda: client.multi("a", kind="semaphore", permits=3, owner="x"),
            r"multi\(\) has no",
        ),
        (lambda: client.multi("a", "b", permit=3), r"multi\(\) has no.*'permit'.*mean 'permits'"),
        (lambda: lockkit.locked("a", when_hold="skip"), r"'when_hold'.*mean 'when_held'"),
        (lambda: lockkit.locked("a", lease="lease"), r"'lease'.*mean 'lease_as'"),
        (lambda: client.multi("a", kind="read", tll=3), r"multi\(\) has no.*'tll'.*mean 'ttl'"),
    ):
        with pytest.raises(ConfigurationError, match=match):
            make()


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("redis://h/0?sokcet_timeout=canary", "socket_timeout"),
        ("redis+sentinel://h:1/s?wait_replica=canary", "wait_replicas"),
        ("redis+cluster://h:1?wait_replica=canary", "wait_replicas"),
        ("redlock://a,b,c?clientname=canary", "client_name"),
        ("zookeeper://h/?conect_timeout=canary", "connect_timeout"),
        ("postgresql://h/d?mode=advisory&max_session=canary", "max_sessions"),
        ("postgresql://h/d?mode=row&ssl_mode=canary", "sslmode"),
        ("postgresql://h/d?sslmod=canary", "sslmode"),
        ("mysql://h/d?ssl_mode=DISABLED&conect_timeout=canary", "connect_timeout"),
        ("mysql://h/d?mode=advisory&max_session=canary", "max_sessions"),
        ("mariadb://h/d?mode=row&sslmode=canary", "ssl_mode"),
    ],
)
def test_a_misspelt_option_of_a_url(url: str, meant: str) -> None:
    with pytest.raises(ConfigurationError, match=f"did you mean '{meant}'") as caught:
        lockkit.connect(url)
    assert "canary" not in str(caught.value)


def test_a_secret_of_a_url_is_not_taken_for_an_option() -> None:
    with pytest.raises(ConfigurationError) as caught:
        lockkit.connect("redis://h/0?canary-7f3a=x")
    assert "canary" not in str(caught.value)
    assert "did you mean" not in str(caught.value)


def test_an_argument_of_connect_is_named_as_it_was_written() -> None:
    with pytest.raises(ConfigurationError, match=r"^options of connect\(\) is of type NoneType"):
        lockkit.connect("memory://", options=None)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"^ttl of connect\(\) is 'x'"):
        lockkit.connect("memory://", ttl="x")  # type: ignore[arg-type]
