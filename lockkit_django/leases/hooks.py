"""Hooks of ``on_commit`` of a block that is ended for a lock: they go with the blocks under it."""

from __future__ import annotations

from contextlib import contextmanager
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

from django.db.backends.base.base import BaseDatabaseWrapper

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.db.transaction import Atomic
    from django.http import HttpRequest

HOOKS = "_lockkit_commit_hooks"
"""Attribute of a request: by alias, the hooks of ``on_commit`` of a block that is suspended."""


def set_hooks_aside(request: HttpRequest, connection: BaseDatabaseWrapper) -> None:
    """The block's own, not those of the test around it: its COMMIT would run them too early."""
    savepoint = {*connection.savepoint_ids[-1:]}  # none: it is the outermost block
    hooks = connection.run_on_commit
    _keep(request, connection, [hook for hook in hooks if savepoint <= hook[0]])
    connection.run_on_commit = [hook for hook in hooks if not savepoint <= hook[0]]


def put_hooks_back(request: HttpRequest, connection: BaseDatabaseWrapper) -> list[Any]:
    """Returns their functions."""
    hooks = vars(request).get(HOOKS, {}).pop(connection.alias, ())
    for _, hook, robust in hooks:
        connection.on_commit(hook, robust)
    return [hook for _, hook, _ in hooks]


@contextmanager
def with_hooks(
    request: HttpRequest, connection: BaseDatabaseWrapper, block: Atomic
) -> Iterator[None]:
    """A block that runs those that are aside. If it fails, they are aside again: the view around
    it may go on, and commit."""
    left: list[Any] = []
    try:
        with block:
            lent = put_hooks_back(request, connection)
            try:
                yield
            finally:
                left = _taken(lent, connection.run_on_commit)
    except BaseException as error:
        if not is_of_hook(error):
            _keep(request, connection, left)
        raise


def _taken(functions: list[Any], hooks: list[Any]) -> list[Any]:
    """The hooks with these functions, each as often. None of those that a COMMIT under a further
    lock has run, nor of the block itself, which come later."""
    left, taken = [*functions], []
    for hook in hooks:
        if hook[1] in left:
            left.remove(hook[1])
            taken.append(hook)
    return taken


def _keep(request: HttpRequest, connection: BaseDatabaseWrapper, hooks: list[Any]) -> None:
    vars(request).setdefault(HOOKS, {})[connection.alias] = hooks


def is_of_hook(error: BaseException) -> bool:
    """Whether a hook of ``on_commit`` has raised it: then the COMMIT is through."""
    hooks = BaseDatabaseWrapper.run_and_clear_commit_hooks.__code__
    return any(frame.f_code is hooks for frame, _ in walk_tb(error.__traceback__))
