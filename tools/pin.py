"""Writes constraints.txt: what the newest releases resolve to on each Python that is tested.

    python tools/pin.py .venv-3.11 .venv-3.12 .venv-3.13

Each argument is a virtual environment with everything installed and nothing constrained. A version
that differs gets a marker, so that 3.11 stays on the Django that still supports it.
"""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from pathlib import Path

HEAD = """\
# What `make test` installs, exactly. Written by tools/pin.py (`make constraints`).
# Python 3.11 has Django 5.2, the long-term release; later ones have the newest.
"""
FROZEN = "import sys; print('%d.%d' % sys.version_info[:2])"


def main(environments: list[str]) -> None:
    pins: dict[str, dict[str, str]] = defaultdict(dict)
    versions = []
    for environment in environments:
        python = f"{environment}/bin/python"
        version = _output(python, "-c", FROZEN).strip()
        versions.append(version)
        for line in _output(python, "-m", "pip", "freeze", "--all").splitlines():
            name, separator, pin = line.partition("==")
            if separator and name not in {"lockkit", "setuptools"}:
                pins[name][version] = pin
    lines = [line for name in sorted(pins, key=str.lower) for line in _lines(name, pins[name])]
    Path("constraints.txt").write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")


def _lines(name: str, pins: dict[str, str]) -> list[str]:
    if len(set(pins.values())) == 1:
        return [f"{name}=={next(iter(pins.values()))}"]
    return [f'{name}=={pin} ; python_version == "{version}"' for version, pin in pins.items()]


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main(sys.argv[1:])
