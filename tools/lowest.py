"""Prints constraints.txt with the lowest version that pyproject.toml declares of each dependency.

    python tools/lowest.py > lowest.txt

What is not declared with a lowest version (tools, and what dependencies need) stays as it is.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

LOWEST = re.compile(r"([\w-]+)(?:\[[\w,]+\])?>=([\d.]+)")
IN_STEP = {"psycopg-binary": "psycopg"}  # a name whose version must be that of another


def main() -> None:
    pins = dict(_declared(tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))))
    pins |= {name: pins[other] for name, other in IN_STEP.items()}
    kept = [
        line
        for line in Path("constraints.txt").read_text(encoding="utf-8").splitlines()
        if line.partition("==")[0].lower() not in pins
    ]
    pinned = [f"{name}=={pin}" for name, pin in sorted(pins.items())]
    sys.stdout.write("\n".join([*pinned, *kept]) + "\n")


def _declared(project: dict[str, dict[str, dict[str, list[str]]]]) -> Iterator[tuple[str, str]]:
    """Names and lowest versions of all extras, and of what tests use beside them."""
    for requirement in project["dependency-groups"]["test"]:
        if lowest := LOWEST.fullmatch(requirement):
            yield lowest[1].lower(), lowest[2]
    for requirements in project["project"]["optional-dependencies"].values():
        for requirement in requirements:
            if lowest := LOWEST.fullmatch(requirement):
                yield lowest[1].lower(), lowest[2]
            elif not requirement.startswith("lockkit["):
                sys.exit(f"{requirement}: declare the lowest version that is tested, as name>=1.2")


if __name__ == "__main__":
    main()
