"""The ``locks`` command as the tests call it: in this process, or as a process of its own."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from lockkit.leases.client import LockClient
from lockkit.model.types import Mode, Owner, Request
from lockkit.operate.commands import ClientFactory, run
from lockkit.testing.conformance.base import eventually
from lockkit.testing.servers.base import free_port

DEADLINE = 60.0
"""Seconds for a process of its own, on a machine that stalls."""


class Result(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def rows(self) -> list[list[str]]:
        """The cells of a table, without its title line and the reasons below its rows."""
        return [line.split() for line in self.out.splitlines()[1:] if not line.startswith(" ")]

    @property
    def locks(self) -> list[dict[str, Any]]:
        """The locks of a JSON document."""
        found: list[dict[str, Any]] = json.loads(self.out)["locks"]
        return found

    @property
    def names(self) -> list[str]:
        return [lock["name"] for lock in self.locks]


class Screen(io.StringIO):
    """A terminal: what is written to it, or typed into it."""

    def isatty(self) -> bool:
        return True


def locks(
    clients: LockClient | Mapping[str, ClientFactory],
    *argv: str,
    stdin: io.StringIO | None = None,
    terminal: bool = False,
    color: bool | None = None,
) -> Result:
    if isinstance(clients, LockClient):
        client = clients
        clients = {"default": lambda: client}
    make = Screen if terminal else io.StringIO
    out, err = make(), make()
    given = stdin or io.StringIO()
    status = run(argv, clients, stdout=out, stderr=err, stdin=given, color=color)
    return Result(status, out.getvalue(), err.getvalue())


def start(*argv: str, url: str, **environment: str) -> subprocess.Popen[str]:
    """``python -m lockkit locks …`` as a process without a terminal. The caller waits for it."""
    return subprocess.Popen(
        [sys.executable, "-m", "lockkit", "locks", *argv],
        env={**os.environ, "LOCKKIT_URL": url, "PYTHONWARNINGS": "error", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


PROGRAM = """
import pathlib, re, sys
from lockkit.__main__ import main
assert main(["locks", *sys.argv[1:]]) == 0
most = re.search(r"VmHWM:\\s+(\\d+) kB", pathlib.Path("/proc/self/status").read_text())
print(most[1], file=sys.stderr)
"""
"""It measures itself: the system's figures of a child also count the process that forked it."""


def listed(url: str, *argv: str) -> tuple[int, int]:
    """Lines, and the bytes that the process had in memory at most."""
    command = [sys.executable, "-c", PROGRAM, *argv]
    environment = {**os.environ, "LOCKKIT_URL": url}
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return shown.stdout.count("\n"), int(shown.stderr) * 1024


def locks_process(*argv: str, url: str, **environment: str) -> Result:
    with start(*argv, url=url, **environment) as process:
        try:
            out, err = process.communicate(timeout=DEADLINE)
        finally:
            process.kill()
    return Result(process.returncode, out, err)


def hold(client: LockClient, name: str, *, owner: Owner | None = None, **claim: Any) -> Request:
    """A claim that nobody renews, like that of a process that hangs on another machine."""
    who = owner or Owner("elsewhere", 4121, "MainThread", "POST /stock/42")
    request = Request(name, os.urandom(16).hex(), **{"ttl": 60.0, **claim}, owner=who.encode())
    client.perform(client.store.acquire(request._replace(mode=Mode.TRY)))
    return request


def until(fact: Callable[[], object]) -> None:
    """Wait for what only the store can tell."""
    eventually(fact)


def dead_port() -> int:
    """A port on which nobody listens."""
    return free_port()


def without(text: str, parts: Sequence[str]) -> bool:
    return not any(part in text for part in parts)


def lockkit_process(*argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if key != "LOCKKIT_URL"}
    command = [sys.executable, "-m", "lockkit", *argv]
    return subprocess.run(
        command, env={**clean, **environment}, capture_output=True, text=True, check=False
    )
