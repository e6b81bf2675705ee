"""The direction of imports: types, errors <- grant, flow <- client, aio <- the adapters.

Reads the source of the installed packages. An import that only a type checker sees counts where it
would tie two parts together, and does not where it only names a type.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

PACKAGES = ("lockkit", "lockkit_django", "lockkit_flask")
DJANGO = {"django", "rest_framework", "django_redis", "lockkit_django"}
FLASK = {"flask", "flask_sqlalchemy", "flask_login", "werkzeug", "click", "lockkit_flask"}
FRAMEWORKS = DJANGO | FLASK
DRIVERS = {"redis", "valkey", "psycopg", "sqlalchemy", "MySQLdb", "pymysql", "kazoo"}

# What each part of the core may import of lockkit when it runs. Above it in the list: never.
VALUES = {
    "lockkit.model.types",
    "lockkit.model.errors",
    "lockkit.model.clock",
    "lockkit.model.values",
    "lockkit.model.log",
    "lockkit.engine.state",
}
PURE = VALUES | {
    "lockkit.runtime.hold",
    "lockkit.engine.holding",
    "lockkit.engine.grant",
    "lockkit.engine.flow",
    "lockkit.engine.steps",
    "lockkit.runtime.schedule",
    "lockkit.runtime.native",
    "lockkit.model.naming",
    "lockkit.model.conversions",
    "lockkit.runtime.process",
}
FOR_BACKENDS = VALUES | {
    "lockkit.engine.grant",
    "lockkit.model.naming",
    "lockkit.runtime.native",
    "lockkit.runtime.background",
    "lockkit.runtime.process",
    "lockkit.model.settings",
    "lockkit.engine.last_words",
    "lockkit.stores.base",
    "lockkit.stores.offload",
}
# grant and flow decide; others look at clocks, wait, and talk.
EFFECTS = {"time", "threading", "asyncio", "socket", "random", "select", "os", "sqlite3"}
WITHOUT_EFFECTS = (
    "model.types",
    "model.errors",
    "engine.state",
    "engine.grant",
    "engine.flow",
    "engine.holding",
    "engine.steps",
    "runtime.hold",
    "model.naming",
    "model.conversions",
)

LOCKS = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore"}

MODULE_LINES = 300
FUNCTION_LINES = 50
SHORT_LINES = 10


@dataclass(frozen=True)
class Import:
    importer: str
    target: str
    lazy: bool  # inside a function
    typing: bool  # under TYPE_CHECKING

    @property
    def top(self) -> str:
        return self.target.partition(".")[0]

    @property
    def runs(self) -> bool:
        return not self.typing

    def __str__(self) -> str:
        return f"{self.importer} imports {self.target}"


ROOMS = ("model", "engine", "runtime", "stores", "leases", "web", "orders", "operate")
"""Of ``lockkit``, from the bottom up: a room imports from those before it, and from itself."""

BELOW_ALL = {"lockkit.texts", "lockkit.per_loop"}
"""Import nothing of ours."""


def test_rooms_import_downwards() -> None:
    wrong = [
        found
        for found in imports("lockkit")
        if found.runs and (room := room_of(found.importer)) and not is_below(found.target, room)
    ]
    assert not wrong, report(wrong)


def room_of(module: str) -> str | None:
    """None: the package itself and what stands at its door, and the kit."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in ROOMS else None


def is_below(target: str, room: str) -> bool:
    if target.partition(".")[0] != "lockkit" or target in BELOW_ALL:
        return True
    found = room_of(target)
    return found is not None and ROOMS.index(found) <= ROOMS.index(room)


def test_values_and_rules_are_at_the_bottom() -> None:
    wrong = [
        found
        for found in imports("lockkit")
        if found.importer in PURE
        and found.runs
        and found.top == "lockkit"
        and found.target not in (VALUES if found.importer == "lockkit.engine.grant" else PURE)
    ]
    assert not wrong, report(wrong)


@pytest.mark.parametrize("name", WITHOUT_EFFECTS)
def test_rules_have_no_clock_thread_loop_or_socket(name: str) -> None:
    wrong = [i for i in imports("lockkit") if i.importer == f"lockkit.{name}" and i.top in EFFECTS]
    assert not wrong, report(wrong)


def test_backends_know_only_what_is_below_them() -> None:
    wrong = [
        found
        for found in imports("lockkit")
        if (store := store_of(found.importer))
        and found.runs
        and found.top == "lockkit"
        and found.target not in FOR_BACKENDS
        and store_of(found.target) != store
    ]
    assert not wrong, report(wrong)


def test_core_knows_no_store() -> None:
    """Stores are named in config.SCHEMES and loaded by name, so that each can be left out."""
    wrong = [
        found
        for found in imports("lockkit")
        if store_of(found.target) and not store_of(found.importer) and not is_kit(found.importer)
    ]
    assert not wrong, report(wrong)


def test_core_knows_no_framework() -> None:
    wrong = [i for i in imports("lockkit") if i.top in FRAMEWORKS and not is_kit(i.importer)]
    assert not wrong, report(wrong)


def test_drivers_are_imported_by_their_backend_only() -> None:
    """And, where they are used, by the test kit and by what writes to the user's resources."""
    wrong = [
        found
        for found in imports("lockkit")
        if found.top in DRIVERS
        and not store_of(found.importer)
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


@pytest.mark.parametrize("adapter", ["lockkit_django", "lockkit_flask"])
def test_adapters_use_no_test_kit(adapter: str) -> None:
    assert not [i for i in imports(adapter) if i.target.startswith("lockkit.testing")]


def test_core_uses_no_test_kit() -> None:
    wrong = [
        found
        for found in imports("lockkit")
        if found.target.startswith("lockkit.testing") and not is_kit(found.importer)
    ]
    assert not wrong, report(wrong)


def test_modules_are_short() -> None:
    lines = {name: source.count("\n") for name, source in sources()}
    long = {name: count for name, count in lines.items() if count >= MODULE_LINES}
    assert not long, long


@pytest.mark.parametrize("package", PACKAGES)
def test_no_lock_is_shared_by_all_instances_of_a_class(package: str) -> None:
    """One slow client would hold up all requests of its process.

    ``functools.cached_property`` has such a lock on Python 3.11, and holds it while it computes.
    """
    wrong = [
        found
        for name, source in sources()
        if name.partition(".")[0] == package and not is_kit(name)
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


def test_functions_are_short() -> None:
    lengths = {f"{module}.{name}": lines for module, name, lines in functions()}
    long = {name: lines for name, lines in lengths.items() if lines > FUNCTION_LINES}
    assert not long, long
    short = sum(lines < SHORT_LINES for lines in lengths.values())
    assert short > len(lengths) / 2, "most functions are under ten lines"


def test_the_reader_sees_every_kind_of_import() -> None:
    source = """
from __future__ import annotations
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from lockkit.model.settings import AliasSettings
from lockkit.model import clock
def lazy():
    import redis.asyncio
"""
    found = {(i.target, i.lazy, i.typing) for i in read_imports("x", ast.parse(source))}
    assert ("lockkit.model.clock", False, False) in found
    assert ("lockkit.model.settings", False, True) in found
    assert ("redis.asyncio", True, False) in found


def store_of(module: str) -> str | None:
    """'redis' for lockkit.stores.redis.layout; None outside of the stores' own modules."""
    parts = module.split(".")
    own = parts[:2] == ["lockkit", "stores"] and len(parts) > 2
    return parts[2] if own and parts[2] not in {"base", "offload", "registry"} else None


def is_kit(module: str) -> bool:
    return module.split(".")[:2] == ["lockkit", "testing"]


def may_have_drivers(module: str) -> bool:
    return is_kit(module) or module == "lockkit.fencing"


def report(wrong: list[Import]) -> str:
    return "\n".join(map(str, wrong))


@cache
def imports(package: str) -> tuple[Import, ...]:
    return tuple(
        found
        for name, source in sources()
        if name.partition(".")[0] == package
        for found in read_imports(name, ast.parse(source))
    )


def read_imports(importer: str, tree: ast.Module) -> Iterator[Import]:
    for node, lazy, typing in walk(tree, lazy=False, typing=False):
        for target in targets(node):
            yield Import(importer, target, lazy, typing)


def walk(node: ast.AST, *, lazy: bool, typing: bool) -> Iterator[tuple[ast.AST, bool, bool]]:
    for child in ast.iter_child_nodes(node):
        inside = lazy or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        checked = typing or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test))
        yield child, inside, checked
        yield from walk(child, lazy=inside, typing=checked)


def targets(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute: they say where they lead"
        assert node.module
        modules = dict(sources())
        for alias in node.names:
            full = f"{node.module}.{alias.name}"
            yield full if full in modules else node.module


def shared_locks(module: str, tree: ast.Module) -> Iterator[str]:
    for node, lazy, _ in walk(tree, lazy=False, typing=False):
        made = isinstance(node, ast.Call) and last_name(node.func) in LOCKS and not lazy
        names = {alias.name for alias in node.names} if isinstance(node, ast.ImportFrom) else set()
        imported = isinstance(node, ast.ImportFrom) and node.module == "functools"
        decorates = isinstance(node, ast.Attribute) and node.attr == "cached_property"
        if made or decorates or (imported and "cached_property" in names):
            yield f"{module}:{getattr(node, 'lineno', 0)}"


def last_name(node: ast.expr) -> str:
    """``Lock`` of ``threading.Lock`` and of ``Lock``."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def functions() -> Iterator[tuple[str, str, int]]:
    """Module, name and length of each; a docstring says what a reader need not work out."""
    for module, source in sources():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno:
                body = node.body[1:] if ast.get_docstring(node) is not None else node.body
                first = body[0].lineno if body else node.end_lineno
                yield module, node.name, node.end_lineno - first + 1


@cache
def sources() -> tuple[tuple[str, str], ...]:
    return tuple(read_sources())


def read_sources() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        spec = find_spec(package)
        assert spec
        assert spec.origin, f"{package} has no __init__.py"
        root = Path(spec.origin).parent
        for path in sorted(root.rglob("*.py")):
            if "migrations" in path.parts:
                continue  # Django writes them
            parts = (package, *path.relative_to(root).with_suffix("").parts)
            yield ".".join(p for p in parts if p != "__init__"), path.read_text(encoding="utf-8")
