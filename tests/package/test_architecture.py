"""The direction of imports: a room imports from those below it, and never in a circle."""

from __future__ import annotations

import ast
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
from source_reader import (
    PACKAGES,
    Import,
    all_imports,
    circle,
    functions,
    imports,
    in_package,
    read_imports,
    shared_locks,
    sources,
)

from lockkit.stores.registry import SCHEMES

ROOMS = ("model", "engine", "runtime", "stores", "leases", "web", "orders", "operate")
"""From the bottom up: a room imports from those before it, and from itself. In the adapters too."""

BELOW_ALL = {"lockkit.texts", "lockkit.per_loop"}
"""Import nothing of ours."""

STORES = {
    ".".join(path.partition(":")[0].split(".")[:3])
    for path in SCHEMES.values()
    if path.startswith("lockkit.stores.")
}
KIT = "lockkit.testing"
COMPAT = "lockkit.compat"
"""Other libraries' interfaces, each over the store of its own driver."""

DJANGO = {"django", "rest_framework", "django_redis", "lockkit_django"}
FLASK = {"flask", "flask_sqlalchemy", "flask_login", "werkzeug", "click", "lockkit_flask"}
FRAMEWORKS = DJANGO | FLASK
DRIVERS = {"redis", "valkey", "psycopg", "sqlalchemy", "MySQLdb", "pymysql", "kazoo"}

EFFECTS = {"time", "threading", "asyncio", "socket", "random", "select", "os", "sqlite3"}
WITHOUT_EFFECTS = ("model", "engine")
"""These rooms decide; others look at clocks, wait, and talk."""

MAY_LOOK = {("lockkit.model.clock", "time"), ("lockkit.model.settings", "os")}

TWICE = {
    "lockkit": {
        *("Connection", "Dialect", "Inbox", "Line", "WaitingClaim"),  # the same in two stores
        *("Session", "SessionEnded"),  # with a database, and with ZooKeeper
        *("Lock", "AsyncLock"),  # redis-py's, in lockkit.compat
    }
}
"""Names of two classes. All others are of one class in each package."""

DOOR_MODULES = 8
MODULE_LINES = 300
FUNCTION_LINES = 50
SHORT_LINES = 10


@pytest.mark.parametrize("package", PACKAGES)
def test_no_import_leads_back(package: str) -> None:
    found = [i for i in imports(package) if in_package(i.target, package)]
    assert not circle(found), " -> ".join(circle(found))


BACK = {
    "in a function": "def later():\n    from ours import a",
    "behind import_module": "def later():\n    return importlib.import_module('ours.a')",
    "under a test": "if DEBUG:\n    import ours.a",
}


@pytest.mark.parametrize("way", BACK.values(), ids=BACK)
def test_a_circle_is_found_wherever_it_hides(way: str) -> None:
    modules = {"ours.a": "from ours.b import f", "ours.b": "import ours.c", "ours.c": way}
    assert set(circle(all_imports(modules))) == set(modules)


def test_what_only_names_a_type_makes_no_circle() -> None:
    back = "if TYPE_CHECKING:\n    from ours.a import A"
    assert not circle(all_imports({"ours.a": "from ours.b import f", "ours.b": back}))


@pytest.mark.parametrize("package", PACKAGES)
def test_rooms_import_downwards(package: str) -> None:
    wrong = [i for i in imports(package) if i.runs and leads_up(i)]
    assert not wrong, report(wrong)


def leads_up(found: Import) -> bool:
    room, target = room_of(found.importer), room_of(found.target)
    if room is None or not in_package(found.target, found.importer.partition(".")[0]):
        return False
    if target is None:  # a core that imports from its own door runs in a circle
        return found.top == "lockkit" and found.target not in BELOW_ALL
    return ROOMS.index(target) > ROOMS.index(room)


def room_of(module: str) -> str | None:
    """None for the package itself, the modules at its door, and the kit."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in ROOMS else None


def test_the_door_is_not_a_room() -> None:
    (root,) = find_spec("lockkit").submodule_search_locations  # type: ignore[union-attr,misc]
    assert len([*Path(root).glob("*.py")]) <= DOOR_MODULES


@pytest.mark.parametrize("room", WITHOUT_EFFECTS)
def test_rules_have_no_clock_thread_loop_or_socket(room: str) -> None:
    wrong = [
        found
        for found in imports("lockkit")
        if room_of(found.importer) == room
        and found.top in EFFECTS
        and (found.importer, found.top) not in MAY_LOOK
    ]
    assert not wrong, report(wrong)


STANDS_ON = {"lockkit.stores.redlock": "lockkit.stores.redis"}
"""Its nodes are what the other store is: connections, replies and errors of Redis."""


def test_no_store_knows_another() -> None:
    wrong = [
        found
        for found in imports("lockkit")
        if (store := store_of(found.importer)) and found.runs
        and store_of(found.target) not in {None, store, STANDS_ON.get(store)}
    ]  # fmt: skip
    assert not wrong, report(wrong)


def test_core_knows_no_store() -> None:
    """Stores are named in the registry and loaded by name, so that each can be left out."""
    wrong = [
        found
        for found in imports("lockkit")
        if store_of(found.target)
        and not store_of(found.importer)
        and not is_kit(found.importer)
        and not in_package(found.importer, COMPAT)
    ]
    assert not wrong, report(wrong)


def test_core_knows_no_framework() -> None:
    wrong = [i for i in imports("lockkit") if i.top in FRAMEWORKS and not is_kit(i.importer)]
    assert not wrong, report(wrong)


def test_drivers_are_imported_by_their_store_only() -> None:
    """And, where they are used, by the test kit and by what writes to the user's resources."""
    wrong = [
        found
        for found in imports("lockkit")
        if found.top in DRIVERS
        and not store_of(found.importer)
        and not in_package(found.importer, COMPAT)
        and not (may_have_drivers(found.importer) and (found.lazy or found.typing))
    ]
    assert not wrong, report(wrong)


def test_kit_imports_frameworks_where_it_uses_them() -> None:
    """The pytest plugin is loaded in every project that has lockkit installed."""
    wrong = [
        found
        for found in imports("lockkit")
        if is_kit(found.importer) and found.top in FRAMEWORKS and not found.lazy and found.runs
    ]
    assert not wrong, report(wrong)


@pytest.mark.parametrize(
    ("adapter", "others"), [("lockkit_django", FLASK), ("lockkit_flask", DJANGO)]
)
def test_adapters_do_not_know_one_another(adapter: str, others: set[str]) -> None:
    wrong = [i for i in imports(adapter) if i.top in others]
    assert not wrong, report(wrong)


@pytest.mark.parametrize("package", PACKAGES)
def test_what_ships_uses_no_test_kit(package: str) -> None:
    wrong = [i for i in imports(package) if is_kit(i.target) and not is_kit(i.importer)]
    assert not wrong, report(wrong)


def test_modules_are_short() -> None:
    lines = {name: source.count("\n") for name, source in sources().items()}
    long = {name: count for name, count in lines.items() if count >= MODULE_LINES}
    assert not long, long


def test_functions_are_short() -> None:
    lengths = {f"{module}.{name}": lines for module, name, lines in functions()}
    long = {name: lines for name, lines in lengths.items() if lines > FUNCTION_LINES}
    assert not long, long
    short = sum(lines < SHORT_LINES for lines in lengths.values())
    assert short > len(lengths) / 2, "most functions are under ten lines"


@pytest.mark.parametrize("package", PACKAGES)
def test_no_two_classes_have_the_same_name(package: str) -> None:
    """An adapter names what is the core's, or the other adapter's, as they do."""
    names = Counter(
        node.name
        for module, source in sources().items()
        if in_package(module, package)
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name in names if names[name] > 1} == TWICE.get(package, set())


@pytest.mark.parametrize("package", PACKAGES)
def test_no_lock_is_shared_by_all_instances_of_a_class(package: str) -> None:
    """One slow client would hold up all requests of its process.

    ``functools.cached_property`` has such a lock on Python 3.11, and holds it while it computes.
    """
    wrong = [
        found
        for name, source in sources().items()
        if in_package(name, package) and not is_kit(name)
        for found in shared_locks(name, ast.parse(source))
    ]
    assert not wrong, wrong


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("import functools as f\nclass A:\n @f.cached_property\n def x(self): ...", 1),
        ("from functools import cached_property as once", 1),
        ("from werkzeug.utils import cached_property", 0),
        ("class A:\n lock = threading.Lock()", 1),
        ("class A:\n lock: Lock = RLock()", 1),
        ("_locks = [asyncio.Condition()]", 1),
        ("class A:\n def __init__(self): self.lock = threading.Lock()", 0),
    ],
)
def test_the_reader_sees_every_kind_of_shared_lock(source: str, count: int) -> None:
    assert len(list(shared_locks("x", ast.parse(source)))) == count


def test_the_reader_sees_every_kind_of_import() -> None:
    source = """
from __future__ import annotations
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from lockkit.model.settings import AliasSettings
from lockkit.model import clock
def lazy():
    import redis.asyncio
    import_module("sqlite3")
"""
    found = {(i.target, i.lazy, i.typing) for i in read_imports("x", ast.parse(source), sources())}
    assert ("lockkit.model.clock", False, False) in found
    assert ("lockkit.model.settings", False, True) in found
    assert ("redis.asyncio", True, False) in found
    assert ("sqlite3", True, False) in found


def store_of(module: str) -> str | None:
    """'lockkit.stores.redis' for a module of it; None outside of the stores' own modules."""
    return next((store for store in STORES if in_package(module, store)), None)


def is_kit(module: str) -> bool:
    return in_package(module, KIT)


def may_have_drivers(module: str) -> bool:
    return is_kit(module) or module in {"lockkit.fencing", "lockkit.orders.psycopg"}


def report(wrong: list[Import]) -> str:
    return "\n".join(map(str, wrong))
