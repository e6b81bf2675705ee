"""``@locked``: a function that runs while it holds a lock, for tasks, jobs and commands."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import _GeneratorContextManagerBase
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, cast

from lockkit.leases.decorating import refuse_bare, refuse_task
from lockkit.leases.until import check_in_atomic, check_until, only_blocking
from lockkit.model.checks import check_timeout, check_ttl, one_of
from lockkit.model.errors import AcquireTimeout, ConfigurationError, TooManySessions
from lockkit.model.log import log
from lockkit.model.names import Template, check_name
from lockkit.model.options import check_options
from lockkit.model.settings import DEFAULT_ALIAS
from lockkit.model.types import UNSET

if TYPE_CHECKING:
    from lockkit.leases.aio_client import AsyncLockClient
    from lockkit.leases.client import LockClient
    from lockkit.leases.decorated import Locked, Name


def locked_with(
    blocking: Callable[[str], LockClient],
    in_loop: Callable[[str], AsyncLockClient],
    known: Iterable[str],
    note: Callable[[str, object, object], None] = lambda *_: None,
) -> Locked:
    """Make the decorator ``locked``. ``blocking`` and ``in_loop`` find a client by its alias, at
    each call, so decorating needs no settings. ``known``: the names of the options. ``note`` is
    called by what the user's line calls, with "locked", the function and its wrapper."""

    def locked(
        name: Name, *, when_held: str = "raise", lease_as: str | None = None, **options: Any
    ) -> Callable[..., Any]:
        """Make a function hold the lock ``name`` while it runs, in the store of $LOCKKIT_URL; with
        an adapter, in that of the lock alias ``alias``.

        For functions, methods, coroutine functions, partials and callable objects. Put it below
        ``@app.task`` and its like, and directly above a coroutine function. The function must not
        return something that runs after the release: a coroutine, a generator, a task, a running
        future, or a context manager of @contextmanager.
        name: a template over the arguments, such as ``"report:{day}"``, or a callable that gets the
        arguments and returns a name. A template makes the same name as in ``lockkit.name``.
        ttl: seconds the lease lives unrenewed. timeout: seconds to wait (0: do not; None: for
        ever). when_held: "raise" LockHeld, AcquireTimeout or TooManyWaiters, or "skip" the call and
        return None; "skip" waits only if ``timeout`` is given, and TooManySessions is raised in
        either case. lease_as: the parameter in which the function gets the lease; callers leave it
        out.

        With an adapter, transactions belong inside the function. A call inside an open transaction
        raises OpenTransaction, because the transaction would COMMIT after the release. (In Flask: a
        call with changes in ``db.session``, or inside an order. A call needs an app context.)
        ``until="commit"`` holds the lock until the transaction has ended. ``in_atomic="allow"`` is
        for a lock that protects nothing in the database.

        Raises ConfigurationError or InvalidName at once for a wrong decoration. A call raises
        ConfigurationError if the function returns something that has yet to run, a BackendError if
        the store fails, and LeaseLost at its end if the lease was lost.
        """
        refuse_bare("locked", name)
        check_options("@locked", options, (*known, "when_held", "lease_as"))
        _check_values(when_held, options)
        if when_held == "skip" and options.get("timeout", UNSET) is UNSET:
            options["timeout"] = 0
        alias = options.pop("alias", DEFAULT_ALIAS)
        template = name if callable(name) else Template(name, bare_only=True)

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            call = _Call(function, template, lease_as, options, skip=when_held == "skip")
            if inspect.iscoroutinefunction(_run_by(function)):
                only_blocking(options.get("until"))
                wrapper = _coroutine(function, call, partial(in_loop, alias))
            else:
                wrapper = _function(function, call, partial(blocking, alias))
            wrapper.__signature__ = call.signature  # type: ignore[attr-defined]
            note("locked", function, wrapper)
            return wrapper

        return decorate

    return locked


def _check_values(when_held: str, options: Mapping[str, Any]) -> None:
    one_of("raise", "skip")("when_held", when_held)
    if options.get("ttl", UNSET) is not UNSET:
        check_ttl("ttl", options["ttl"])
    if options.get("timeout", UNSET) is not UNSET:
        check_timeout("timeout", options["timeout"])
    check_in_atomic(options.get("in_atomic", "refuse"))
    check_until(options.get("until"))


class _Call:
    """The part of a call that is the same for blocking and for coroutine functions."""

    def __init__(
        self,
        function: Callable[..., Any],
        template: Template | Callable[..., str],
        lease_as: str | None,
        options: Mapping[str, Any],
        *,
        skip: bool,
    ) -> None:
        _check_kind(function)
        self._function = function
        self._template = template
        self._lease_as = lease_as
        self.shown = _shown(function)
        self.options = {**options, "label": self.shown}
        self._skip = skip
        signature = inspect.signature(function)
        self._check_parameters(signature)
        self._lease_at = _place(signature, lease_as)
        self.signature = _without(signature, lease_as)

    def name(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        if not isinstance(self._template, Template):
            return check_name(self._template(*args, **kwargs))
        bound = self.signature.bind_partial(*args, **kwargs)
        bound.apply_defaults()
        values = {**bound.kwargs, **bound.arguments}
        return self._template.fill(lambda field: values.get(field.path[0]))

    def skips(self, error: AcquireTimeout) -> bool:
        """Whether to leave out the call, because somebody else has the lock. Logs it then."""
        if not self._skip or isinstance(error, TooManySessions):
            return False
        log.info("%s is skipped: %s", self.shown, error)
        return True

    def run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], lease: object) -> Any:
        if self._lease_as is None:
            return self._function(*args, **kwargs)
        at = self._lease_at
        if at is not None and at <= len(args):
            return self._function(*args[:at], lease, *args[at:], **kwargs)
        return self._function(*args, **kwargs, **{self._lease_as: lease})

    def done(self, result: Any) -> Any:
        """The result. Raises ConfigurationError if it has yet to run: the release comes first."""
        if isinstance(result, _GeneratorContextManagerBase):
            raise ConfigurationError(
                f"@locked: {self.shown} returned a context manager, whose block would run after "
                "the release: take the lock in its body, as `with locks.lock(name): yield`"
            )
        if _goes_on(result):
            _end(result)
            raise ConfigurationError(
                f"@locked: {self.shown} returned a {type(result).__name__}, which would run after "
                "the release: put @locked directly above a coroutine function, or have the "
                "function wait for what it has begun, and return the result"
            )
        return result

    def _check_parameters(self, signature: inspect.Signature) -> None:
        parameters = signature.parameters.values()
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            return
        wanted = [self._lease_as] if self._lease_as else []
        if isinstance(self._template, Template):
            wanted += [field.path[0] for field in self._template.fields]
        named = [each.name for each in parameters if each.kind is not each.VAR_POSITIONAL]
        for name in wanted:
            if name not in named:
                raise ConfigurationError(
                    f"@locked: {self.shown} has no parameter {name!r}; "
                    f"it has {', '.join(named) or 'none'}"
                )


def _place(signature: inspect.Signature, name: str | None) -> int | None:
    """The position of a parameter; None: it can only be given by keyword."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [each.name for each in signature.parameters.values() if each.kind in kinds]
    return positional.index(name) if name in positional else None


def _without(signature: inspect.Signature, name: str | None) -> inspect.Signature:
    """The signature without this parameter, as callers see it."""
    left = [each for each in signature.parameters.values() if each.name != name]
    return signature.replace(parameters=left)


def _check_kind(function: Callable[..., Any]) -> None:
    refuse_task("locked", function)
    if inspect.isclass(function):
        raise ConfigurationError(f"@locked is for functions: decorate a method of {function!r}")
    if not callable(function):
        raise ConfigurationError(
            f"@locked is for functions, not for {function!r}: put it below @classmethod"
        )
    run = _run_by(function)
    if inspect.isgeneratorfunction(run) or inspect.isasyncgenfunction(run):
        raise ConfigurationError(
            f"@locked: {_shown(function)} is a generator: it would run after the release"
        )


def _run_by(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function that a call runs: the one inside partials, or an object's ``__call__``."""
    while isinstance(function, partial):
        function = function.func
    return function if inspect.isroutine(function) else cast("Any", type(function)).__call__


def _shown(function: Callable[..., Any]) -> str:
    """Its name for people. For a partial, its function's; for most objects, their class's."""
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _goes_on(result: object) -> bool:
    if isinstance(result, Future):  # of a pool, which cannot cancel what already runs
        return not result.done()
    if inspect.isawaitable(result):
        return True
    return inspect.isgenerator(result) or inspect.isasyncgen(result)


def _end(unfinished: Any) -> None:
    """End it: it must not go on without the lock, or warn that it was never awaited."""
    if inspect.iscoroutine(unfinished) or inspect.isgenerator(unfinished):
        unfinished.close()
    elif hasattr(unfinished, "cancel"):  # a future or a task
        unfinished.cancel()


def _function(
    function: Callable[..., Any], call: _Call, blocking: Callable[[], LockClient]
) -> Callable[..., Any]:
    @wraps(function)
    def locked_function(*args: Any, **kwargs: Any) -> Any:
        lock = blocking().lock(call.name(args, kwargs), **call.options)
        try:
            lease = lock.acquire()
        except AcquireTimeout as error:
            if call.skips(error):
                return None
            raise
        with lease:
            return call.done(call.run(args, kwargs, lease))

    return locked_function


def _coroutine(
    function: Callable[..., Any], call: _Call, in_loop: Callable[[], AsyncLockClient]
) -> Callable[..., Any]:
    @wraps(function)
    async def locked_coroutine(*args: Any, **kwargs: Any) -> Any:
        lock = in_loop().lock(call.name(args, kwargs), **call.options)
        try:
            lease = await lock.acquire()
        except AcquireTimeout as error:
            if call.skips(error):
                return None
            raise
        async with lease:
            return call.done(await call.run(args, kwargs, lease))

    return locked_coroutine
