"""What is installed is the wheel, it is complete, and importing it is cheap."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import sysconfig
from functools import cache
from importlib.metadata import Distribution, distribution, entry_points
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from places import ROOT

import lockkit
from lockkit.stores.registry import SCHEMES

PACKAGES = ("lockkit", "lockkit_django", "lockkit_flask")
# What asks for more than the interpreter has, or takes long, is imported when it is first used.
NOT_AT_IMPORT = (
    "asyncio",
    "dataclasses",
    "difflib",
    "importlib.metadata",
    "inspect",
    "json",
    "logging",
    "redis",
    "sqlalchemy",
    "sqlite3",
    "unicodedata",
    "psycopg",
    "django",
    "flask",
    "werkzeug",
    "lockkit_django",
    "lockkit_flask",
)
SETTINGS = """
SECRET_KEY = "x"
INSTALLED_APPS = ["lockkit_django"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
USE_TZ = True
"""


@pytest.mark.parametrize("package", PACKAGES)
def test_package_is_the_installed_one(package: str) -> None:
    spec = find_spec(package)
    assert spec
    assert spec.origin
    site = Path(sysconfig.get_path("purelib")).resolve()
    assert Path(spec.origin).resolve().is_relative_to(site), "run `make test`: it tests the wheel"


def test_checkout_is_not_importable() -> None:
    reachable = [path for path in sys.path if Path(path or ".").resolve() == ROOT]
    assert not reachable
    assert find_spec("example_project") is None
    assert find_spec("benchmarks") is None


@pytest.mark.parametrize("package", PACKAGES)
def test_everything_in_the_source_is_installed(package: str) -> None:
    """Lua, SQL, templates, migrations, py.typed: whatever the package's directory holds."""
    source = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert f"{package}/py.typed" in source
    assert not source - installed_files()


@pytest.mark.parametrize(
    ("package", "ending"),
    [
        ("lockkit/stores/redis", ".lua"),
        ("lockkit/stores/sql", ".sql"),
        ("lockkit_django/migrations", ".py"),
        ("lockkit/texts", ".toml"),
    ],
)
def test_data_files_are_installed(package: str, ending: str) -> None:
    assert [f for f in installed_files() if f.startswith(package + "/") and f.endswith(ending)]


def test_nothing_else_is_installed() -> None:
    tops = {name.partition("/")[0] for name in installed_files()}
    ours = {top for top in tops if not top.endswith(".dist-info") and top != ".."}
    assert ours == set(PACKAGES)


def test_entry_points_lead_somewhere() -> None:
    found = list(lockkit_distribution().entry_points)
    assert {point.group for point in found} == {"console_scripts", "pytest11", "flask.commands"}
    for point in found:
        assert callable(point.load()) or point.group == "pytest11"


@pytest.mark.parametrize(("package", "framework"), [("django", "asgiref"), ("flask", "flask")])
def test_an_adapter_without_its_framework_names_the_extra(package: str, framework: str) -> None:
    """In a process in which the framework cannot be imported."""
    program = f"import sys; sys.modules[{framework!r}] = None; import lockkit_{package}"
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert f"pip install 'lockkit[{package}]'" in ran.stderr.splitlines()[-1]


def test_own_schemes_need_no_entry_point() -> None:
    """An entry point is a third party's: ours cannot be taken over by one."""
    others = {point.name for point in entry_points(group="lockkit.backends")}
    assert not others & set(SCHEMES)


def test_all_extra_has_every_other() -> None:
    wanted: dict[str, set[str]] = {}
    for text in lockkit_distribution().requires or ():
        requirement = Requirement(text)
        for extra in lockkit_distribution().metadata.get_all("Provides-Extra") or ():
            if requirement.marker and requirement.marker.evaluate({"extra": extra}):
                wanted.setdefault(extra, set()).add(requirement.name)
    assert wanted.pop("all") == set().union(*wanted.values())


def test_nothing_else_is_required() -> None:
    requirements = lockkit_distribution().requires or ()
    assert requirements
    assert all("extra ==" in requirement for requirement in requirements)


def test_import_is_cheap() -> None:
    program = (
        "import sys; before = set(sys.modules); import lockkit; "  # site imports what it likes
        "print([m for m in sys.argv[1:] if m in {*sys.modules} - before])"
    )
    assert run_python("-c", program, *NOT_AT_IMPORT) == "[]"


def test_pytest_plugin_is_cheap() -> None:
    frameworks = ("django", "flask", "redis", "sqlalchemy", "lockkit_django", "lockkit_flask")
    program = (
        "import sys, lockkit.testing.plugin; print([m for m in sys.argv[1:] if m in sys.modules])"
    )
    assert run_python("-c", program, *frameworks) == "[]"


def test_models_have_their_migrations(tmp_path: Path) -> None:
    (tmp_path / "minimal_settings.py").write_text(SETTINGS, encoding="utf-8")
    printed = run_python(
        "-m", "django", "makemigrations", "--check", "--dry-run", "--settings=minimal_settings",
        f"--pythonpath={tmp_path}",
    )  # fmt: skip
    assert printed == "No changes detected"


def test_no_pickle_and_no_eval() -> None:
    """Names, headers, bodies and what is in the store are hostile."""
    for name in (f for f in installed_files() if f.endswith(".py")):
        tree = ast.parse((site_packages() / name).read_text(encoding="utf-8"))
        imported = {
            alias.name.partition(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for alias in node.names
        } | {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        called = {
            node.func.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert not imported & {"pickle", "marshal", "shelve", "yaml", "dill"}, name
        assert not called & {"eval", "exec"}, name


@cache
def lockkit_distribution() -> Distribution:
    return distribution("lockkit")


@cache
def installed_files() -> frozenset[str]:
    listed = lockkit_distribution().files or ()
    names = {path.as_posix() for path in listed if "__pycache__" not in path.parts}
    return frozenset(name for name in names if (site_packages() / name).is_file())


def site_packages() -> Path:
    return Path(lockkit.__file__).parents[1]


def run_python(*arguments: str) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("COV_", "DJANGO_"))}
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**environment, "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def test_the_version_is_that_of_the_installed_release() -> None:
    assert lockkit.__version__ == distribution("lockkit").version
