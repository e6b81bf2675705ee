"""Two releases on one store, as while machines are updated one by one: a typed error, or one lock.

The earlier release is the code of its commit, in processes of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import earlier
import pytest
import redis
from earlier import Process

import lockkit

HERE = Path(__file__).parent
KINDS = ["mutex", "reentrant", "semaphore", "write"]
REFUSED = {"LockHeld", "LayoutMismatch"}


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return earlier.unpack(tmp_path_factory.mktemp("earlier"))


STORES = ["sqlite", "postgresql"]
if redis.VERSION >= (8,):  # the earlier release needs it
    STORES.append("redis")


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'locks.sqlite3'}"
    if request.param == "redis":
        return str(request.getfixturevalue("redis_url"))
    server = str(request.getfixturevalue("lock_table_url"))
    return f"sqlalchemy+{server.replace('postgresql:', 'postgresql+psycopg:')}"


@pytest.fixture(scope="module")
def both(release: Path) -> Iterator[tuple[Process, Process]]:
    """The earlier one, and this."""
    locker, installed = HERE / "locker.py", str(Path(lockkit.__file__).parent)
    with (
        earlier.process(locker, str(release), release=release) as old,
        earlier.process(locker, installed) as new,
    ):
        yield old, new


@pytest.fixture(params=["earlier first", "this first"])
def pair(
    request: pytest.FixtureRequest, url: str, both: tuple[Process, Process]
) -> Iterator[tuple[Process, Process]]:
    """The one that comes first, and the other, on a new store."""
    for each in both:
        assert each.ask(f"open {url}") == "open"
    yield both if request.param == "earlier first" else (both[1], both[0])
    for each in both:
        assert each.ask("close") == "closed"


@pytest.mark.parametrize("kind", KINDS)
def test_there_are_never_two_holders(pair: tuple[Process, Process], kind: str) -> None:
    first, second = pair
    granted, fence = first.ask(f"take {kind} 0").split()
    assert granted == "granted"
    assert second.ask(f"take {kind} 0") in REFUSED
    assert first.ask("give") == "True"
    then = second.ask(f"take {kind} 0").split()
    assert then[0] in {"granted", "LayoutMismatch"}
    if then[0] == "granted":
        assert int(then[1]) > int(fence)


@pytest.mark.parametrize("kind", KINDS)
def test_a_waiter_of_the_other_release_is_served_or_told(
    pair: tuple[Process, Process], kind: str
) -> None:
    first, second = pair
    assert first.ask(f"take {kind} 0").startswith("granted")
    second.tell(f"take {kind} 60")
    assert first.ask("give") == "True"
    assert second.hear().split()[0] in {"granted", "LayoutMismatch"}


@pytest.mark.parametrize("updated", [False, True], ids=["before migrate", "after migrate"])
def test_an_order_in_the_database_is_never_made_by_both(
    updated: bool, tmp_path: Path, release: Path
) -> None:
    """The release that does not fit the table makes no orders, and its view does not run."""
    arguments = (str(tmp_path / "shop.sqlite3"), f"sqlite:///{tmp_path / 'locks.sqlite3'}")
    shop = HERE / "shop.py"
    with (
        earlier.process(shop, *arguments, release=release) as old,
        earlier.process(shop, *arguments) as new,
    ):
        assert old.ask("migrate") == "migrated"
        if updated:
            assert new.ask("migrate") == "migrated"
        first, second = (new, old) if updated else (old, new)
        assert first.ask("order A-1") == "2 1"
        assert second.ask("order A-1") == "5 0"
        assert first.ask("order A-1") == "2 1"


def test_the_table_is_not_taken_over_with_orders_that_would_be_made_again(
    tmp_path: Path, release: Path
) -> None:
    arguments = (str(tmp_path / "shop.sqlite3"), f"sqlite:///{tmp_path / 'locks.sqlite3'}")
    shop = HERE / "shop.py"
    with (
        earlier.process(shop, *arguments, release=release) as old,
        earlier.process(shop, *arguments) as new,
    ):
        assert old.ask("migrate") == "migrated"
        assert old.ask("order A-1") == "2 1"
        assert "1 orders of an earlier release" in new.ask("migrate")
        assert new.ask("order A-1") == "5 0"
        assert old.ask("order A-1") == "2 1"
        assert new.ask("forget") == "forgotten"
        assert new.ask("migrate") == "migrated"
        assert new.ask("order A-2") == "2 1"


def test_an_order_in_a_table_of_flask_is_never_made_by_both(tmp_path: Path, release: Path) -> None:
    arguments = (str(tmp_path / "shop.sqlite3"), f"sqlite:///{tmp_path / 'locks.sqlite3'}")
    shop = HERE / "flask_shop.py"
    with (
        earlier.process(shop, *arguments, release=release) as old,
        earlier.process(shop, *arguments) as new,
    ):
        assert (old.ask("create"), new.ask("create")) == ("done", "done")
        assert old.ask("order A-1") == "2 1"
        assert new.ask("order A-1") == "5 0"
        assert new.ask("drop lockkit_order_record") == "done"
        assert new.ask("order A-2") == "2 1"
        assert old.ask("order A-2") == "5 1"


@pytest.mark.parametrize("earlier_first", [True, False], ids=["earlier first", "this first"])
def in_redis(earlier_first: bool, tmp_path: Path, redis_url: str, release: Path) -> None:
    """Their keys differ, and so do the places where they keep one order: whoever comes second is
    told even if nobody has been there."""
    arguments = (str(tmp_path / "shop.sqlite3"), redis_url, "STORE=redis")
    shop = HERE / "shop.py"
    with (
        earlier.process(shop, *arguments, release=release) as old,
        earlier.process(shop, *arguments, "NAMESPACE=shop") as new,
    ):
        first, second = (old, new) if earlier_first else (new, old)
        assert first.ask("order A-1") == "2 1"
        assert second.ask("order A-1") == "5 0"
        assert first.ask("order A-1") == "2 1"
        assert first.ask("order A-2") == "2 2", "it goes on"


if "redis" in STORES:
    test_an_order_in_redis_is_never_made_by_both = in_redis
