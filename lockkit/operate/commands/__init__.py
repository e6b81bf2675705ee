"""The ``locks`` command: what is held, by whom, what is stuck; and an operator's release.

It knows no framework and no driver: ``manage.py locks``, ``flask locks`` and
``python -m lockkit locks`` are mounts that say which aliases there are and pass the arguments on.

>>> import lockkit
>>> store = {"default": lambda: lockkit.connect("memory://")}
>>> run(["show", "stock:42"], store)  # doctest: +ELLIPSIS
stock:42 is free in memory://, key prefix 'lockkit'; ...
0
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from lockkit.model.errors import BackendError, LockError, StoreRefused
from lockkit.operate.commands.arguments import OPTIONS, HelpAsked, parse
from lockkit.operate.commands.checking import FindingsFactory, check, no_findings
from lockkit.operate.commands.exits import Exit, UsageError
from lockkit.operate.commands.records import OrderRecords, RecordsFactory, no_records
from lockkit.operate.commands.stores import ClientFactory, Stores
from lockkit.operate.commands.terminal import Console, Readable, Writable, printable

__all__ = ["OPTIONS", "ClientFactory", "Exit", "OrderRecords", "run"]


def run(
    argv: Sequence[str],
    clients: Mapping[str, ClientFactory],
    *,
    stdout: Writable | None = None,
    stderr: Writable | None = None,
    stdin: Readable | None = None,
    color: bool | None = None,
    prog: str = "locks",
    records: RecordsFactory = no_records,
    findings: FindingsFactory = no_findings,
) -> int:
    """Run the command and return its exit status, an ``Exit`` (or the child's, of ``locks run``).

    argv: what follows ``locks``, with every ``--`` in it. clients: alias → a function that returns
    its client; called only for the aliases that are looked at, and never closed here. Streams
    default to the process's own. color: None means on a terminal, unless NO_COLOR is set.
    records: says which are the databases with records of orders, for ``locks prune``.
    findings: says what is wrong with the application's routes, for ``locks check``.
    Raises nothing that a user can cause.
    """
    console = Console(stdout or sys.stdout, stderr or sys.stderr, stdin or sys.stdin, color)
    command = partial(_command, records=records, findings=findings)
    try:
        return int(_run(argv, Stores(clients, console), console, prog, command))
    except KeyboardInterrupt:
        return int(Exit.INTERRUPTED)
    except BrokenPipeError:
        console.forget_reader()
        return int(Exit.OK)


def _run(
    argv: Sequence[str],
    stores: Stores,
    console: Console,
    prog: str,
    command: Callable[[argparse.Namespace], Callable[..., int]],
) -> int:
    try:
        arguments = parse(argv, prog)
        return command(arguments)(arguments, stores, console)
    except HelpAsked as asked:
        console.write(asked.text)
        return Exit.OK
    except UsageError as error:
        console.complain(f"{error.usage}{prog}: {printable(str(error))}")
        return Exit.USAGE
    except BrokenPipeError:
        raise
    except (LockError, OSError) as error:
        console.complain(f"{prog}: {printable(str(error))}")
        is_down = isinstance(error, BackendError) and not isinstance(error, StoreRefused)
        return Exit.STORE_DOWN if is_down else Exit.ERROR


def _command(
    arguments: argparse.Namespace, records: RecordsFactory, findings: FindingsFactory
) -> Callable[..., int]:
    """Found when it is asked for: a listing need not import what starts processes."""
    name = arguments.command
    if name == "release" and arguments.damaged:
        from lockkit.operate.commands.repair import repair

        return repair
    if name == "release":
        from lockkit.operate.commands.release import release

        return release
    if name == "run":
        from lockkit.operate.commands.child import run_command

        return run_command
    if name in {"prune", "check"}:  # what only an application knows
        from lockkit.operate.commands.records import prune

        return partial(prune, records) if name == "prune" else partial(check, findings)
    if name == "resolve":
        from lockkit.operate.commands.resolve import resolve_order

        return resolve_order
    from lockkit.operate.commands.listing import list_locks, show

    return show if name == "show" else list_locks
