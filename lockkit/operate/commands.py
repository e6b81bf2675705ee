"""The ``locks`` command: shows what is held, by whom and what is stuck, and releases leases.

It knows no framework and no driver. ``manage.py locks``, ``flask locks`` and
``python -m lockkit locks`` tell it which aliases there are, and pass the arguments on.

>>> import lockkit
>>> store = {"default": lambda: lockkit.connect("memory://")}
>>> run(["show", "stock:42"], store)  # doctest: +ELLIPSIS
stock:42 is free in memory://, key prefix 'lockkit'; ...
0
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from lockkit.model.errors import BackendError, LockError, StoreRefused
from lockkit.operate.arguments import HelpAsked, parse
from lockkit.operate.change import release, resolve
from lockkit.operate.console import Closed, Console, Exit, Readable, UsageError, Writable
from lockkit.operate.listing import list_locks, show
from lockkit.operate.stores import ClientFactory, Stores
from lockkit.operate.text import bare_urls, printable
from lockkit.operate.upkeep import OrderRecords, check, ddl, no_findings, no_records, prune

if TYPE_CHECKING:
    from lockkit.model.types import Finding

__all__ = ["ClientFactory", "Exit", "OrderRecords", "run"]


def run(
    argv: Sequence[str],
    clients: Mapping[str, ClientFactory],
    *,
    stdout: Writable | None = None,
    stderr: Writable | None = None,
    stdin: Readable | None = None,
    color: bool | None = None,
    prog: str = "locks",
    program: str = "",
    records: Callable[[], OrderRecords] = no_records,
    findings: Callable[[], Iterable[Finding]] = no_findings,
) -> int:
    """Run the command and return its exit status, an ``Exit`` (or the program's, of ``locks run``).

    argv: the arguments after ``locks``, including every ``--``. clients: for each alias a function
    that returns its client; it is called only for the aliases that are looked at, and the client is
    never closed here. The streams default to the process's own. color: None means colour on a
    terminal, unless NO_COLOR is set. program: begins the commands for pasting; default: prog.
    records: returns the databases with records of orders; called
    for ``locks prune`` only. findings: returns the faults of the application's routes; called for
    ``locks check`` only. Errors that a user can cause are written to stderr, not raised.
    """
    out, err = stdout or sys.stdout or Closed(), stderr or sys.stderr or Closed()
    console = Console(out, err, stdin or sys.stdin or Closed(), color, program or prog)

    def command() -> int:
        arguments = parse(argv, prog)
        stores = Stores(clients, console)
        match arguments.command:
            case "prune":
                return prune(records(), arguments, console)
            case "check":
                return check(findings(), console)
            case "run":
                from lockkit.operate.program import run_program  # a listing starts no processes

                return run_program(arguments, stores, console)
        return _COMMANDS[arguments.command](arguments, stores, console)

    try:
        return int(_ended(command, console, prog))
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        console.forget_reader()
        return Exit.OK


_COMMANDS = {
    "list": list_locks,
    "show": show,
    "release": release,
    "resolve": resolve,
    "ddl": ddl,
}


def _ended(command: Callable[[], int], console: Console, prog: str) -> int:
    try:
        return command()
    except HelpAsked as asked:
        console.write(str(asked))
        return Exit.OK
    except UsageError as error:
        console.complain(f"{error.usage}{prog}: {printable(bare_urls(str(error)))}")
        return Exit.USAGE
    except BrokenPipeError:
        raise
    except (LockError, OSError) as error:
        console.complain(f"{prog}: {printable(str(error))}")
        is_down = isinstance(error, BackendError) and not isinstance(error, StoreRefused)
        return Exit.STORE_DOWN if is_down else Exit.ERROR
