"""``python -m lockkit [--url URL] locks …``: the command for programs without a framework."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from shlex import quote
from typing import NoReturn

import lockkit
from lockkit.leases.default_store import default_url, unchosen
from lockkit.model.errors import ConfigurationError, DriverMissing
from lockkit.model.settings import DEFAULT_ALIAS, URL_VARIABLE, settings_from_url
from lockkit.operate.anywhere import taken_out
from lockkit.operate.text import bare_urls, printable
from lockkit.stores.contract import UNUSED
from lockkit.stores.registry import load_store

PROG = "lockkit locks"
MISSING = (
    "the command is missing: lockkit locks, or lockkit locks run NAME PROGRAM, or lockkit locks -h"
)
TOLD = {"-h", "--help", "--version"}


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit status. A usage error exits with 2 at once."""
    words = list(sys.argv[1:] if argv is None else argv)
    position = _upto_locks(words)
    options = _store_options()
    parser = _parser(options)
    if words[position - 1 : position] != ["locks"] and TOLD.isdisjoint(words):
        parser.error(MISSING)
    arguments = parser.parse_args(words[:position])
    arguments, theirs = taken_out(options, words[position:], arguments)

    def find() -> str:
        runs, needs_none = theirs[:1] == ["run"], theirs[:1] == ["ddl"]
        url = _url(arguments.url, parser, locks=not needs_none)
        if not (runs or needs_none) and (missing := _missing_file(url)):
            parser.error(f"{missing}: nobody has ever locked there")
        return url

    given = {"--url": arguments.url, "--key-prefix": arguments.key_prefix}
    shown = (f" {flag} {_shown(text)}" for flag, text in given.items() if text is not None)
    return _locks(find, arguments.key_prefix, theirs, PROG + "".join(shown))


def _shown(text: str) -> str:
    """For a command that is pasted. Without its query, a URL may lead to other locks."""
    bare = bare_urls(text)
    return "URL" if bare.endswith("?…") else quote(bare)


def _upto_locks(words: Sequence[str]) -> int:
    """The number of words up to and including ``locks``. A key prefix may be ``locks``, too."""
    for number, (before, word) in enumerate(pairwise(["", *words]), 1):
        if word == "locks" and before not in {"--url", "--key-prefix"}:
            return number
    return len(words)


class _Parser(argparse.ArgumentParser):
    """Errors do not show the password of a URL that is in the wrong place."""

    def error(self, message: str) -> NoReturn:
        self.refuse(bare_urls(message))

    def refuse(self, text: str) -> NoReturn:
        """Exit with this text, which has no secret."""
        super().error(text)


class _Version(argparse.Action):
    """Only this option looks for the version: a copied or frozen package may not have any."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        try:
            sys.stdout.write(f"lockkit {lockkit.__version__}\n")
        except AttributeError as error:
            parser.error(str(error))
        parser.exit()


def _store_options() -> argparse.ArgumentParser:
    """The options that may also come after ``locks``."""
    parser = _Parser(prog="lockkit", allow_abbrev=False, add_help=False)
    parser.add_argument(
        "--url",
        help="the store; default: $LOCKKIT_URL, else the user's SQLite file. Other users of this "
        "machine can see this option: put a URL with a password into $LOCKKIT_URL",
    )
    parser.add_argument("--key-prefix", help="the KEY_PREFIX of the programs that lock there")
    return parser


def _parser(options: argparse.ArgumentParser) -> _Parser:
    parser = _Parser(
        prog="lockkit",
        allow_abbrev=False,
        parents=[options],
        epilog="See lockkit locks --help for more.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the installed release")
    parser.add_argument("command", choices=["locks"])
    return parser


def _url(given: str | None, parser: _Parser, *, locks: bool) -> str:
    """The URL to use. One that is wrong is a usage error, wherever it is from."""
    url = given or ""
    try:
        url = default_url() if given is None else given
        load_store(settings_from_url(url))
    except DriverMissing:
        return url
    except ConfigurationError as error:
        source = f"in {URL_VARIABLE}: " if given is None and url else ""
        parser.refuse(printable(f"{source}{error}"))
    if given is None and locks and (text := unchosen(url)):
        sys.stderr.write(f"lockkit: {text}. Set it, or give --url\n")
    return url


def _missing_file(url: str) -> str:
    """Looking must not create the file: a misspelt path would look as if nothing were locked."""
    store = load_store(settings_from_url(url))
    described = store.database()
    path = described.removesuffix(UNUSED)
    return "" if path == described or store.is_within_process() else f"{path} is missing or empty"


def _locks(
    find: Callable[[], str], key_prefix: str | None, argv: Sequence[str], program: str
) -> int:
    """``find`` returns the URL. It is called only if the command line is right: help and usage
    errors need no store."""
    from lockkit.leases.client import LockClient
    from lockkit.model.options import ClientOptions
    from lockkit.operate.commands import run

    clients: list[LockClient] = []

    def connect() -> LockClient:
        if not clients:
            prefix: ClientOptions = {} if key_prefix is None else {"key_prefix": key_prefix}
            clients.append(lockkit.connect(find(), **prefix))
        return clients[0]

    try:
        return run(argv, {DEFAULT_ALIAS: connect}, prog=PROG, program=program)
    finally:
        for client in clients:
            client.close()


if __name__ == "__main__":
    sys.exit(main())
