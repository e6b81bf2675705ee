"""``@locked``: a function that runs while it holds a lock, for tasks, jobs and commands."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping
from functools import partial, wraps
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from lockkit.leases.client import LockClient
from lockkit.leases.decorating import refuse_bare
from lockkit.leases.environment import environment
from lockkit.model.checks import check_timeout, check_ttl
from lockkit.model.errors import AcquireTimeout, ConfigurationError
from lockkit.model.names import Template, check_name
from lockkit.model.options import check_options
from lockkit.model.types import UNSET, Unset

if TYPE_CHECKING:
    from lockkit.leases.aio_client import AsyncLockClient

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")
Later: TypeAlias = Coroutine[Any, Any, R]

Name: TypeAlias = str | Callable[..., str]
"""A template over the arguments, or what gets them and returns a name."""


class LockedOptions(TypedDict, total=False):
    """The options of every ``@locked``: see ``lockkit.locked``."""

    ttl: float | Unset
    timeout: float | None | Unset


class Skipped(Protocol):
    """``when_held="skip"``: the function returns None when it was not called."""

    @overload
    def __call__(self, function: Callable[P, Later[R]], /) -> Callable[P, Later[R | None]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Callable[P, R | None]: ...


@overload
def locked(
    name: Name, *, when_held: Literal["raise"] = ..., **options: Unpack[LockedOptions]
) -> Callable[[F], F]: ...
@overload
def locked(
    name: Name, *, when_held: Literal["skip"], **options: Unpack[LockedOptions]
) -> Skipped: ...
def locked(name: Name, *, when_held: str = "raise", **options: Any) -> Callable[..., Any]:
    """Have a function hold the lock ``name`` while it runs, in the store of $LOCKKIT_URL.

    For functions, methods, coroutine functions, partials and callable objects; put it below
    ``@app.task`` and its like, and directly above a coroutine function: what hides one is refused
    when it is called, as is all else that would go on after the release (a generator, a task).
    name: a template over the arguments, such as ``"report:{day}"``, or a callable that gets the
    arguments and returns a name. The name is what ``lockkit.name`` makes, and ``@lock_view``.
    ttl: seconds the lease lives unrenewed. timeout: seconds to wait (0: do not; None: for ever).
    when_held: "raise" LockHeld, AcquireTimeout or TooManyWaiters, or "skip" the call and return
    None; it waits only if ``timeout`` is given. A function that needs its lease uses ``with``.

    Raises ConfigurationError or InvalidName at once for what is wrong in the decoration. A call
    raises ConfigurationError if what it returns has yet to run, a BackendError if the store fails,
    and LeaseLost at its end if the lease was lost.
    """
    refuse_bare("locked", name)
    check_options("@locked", options, {*LockedOptions.__optional_keys__, "when_held"})
    return locked_by(environment.blocking, environment.in_loop, name, when_held, options)


def locked_by(
    blocking: Callable[[], LockClient],
    in_loop: Callable[[], AsyncLockClient],
    name: Name,
    when_held: str,
    options: dict[str, Any],
) -> Callable[..., Any]:
    """``locked``, for adapters: with their clients, and checked options of those clients' ``lock``.

    The clients are asked for at each call, so that decorating needs no settings. Raises as
    ``locked``.
    """
    if when_held not in ("raise", "skip"):
        raise ConfigurationError(f"when_held is {when_held!r}; it must be 'raise' or 'skip'")
    if options.get("ttl", UNSET) is not UNSET:
        check_ttl("ttl", options["ttl"])
    if options.get("timeout", UNSET) is not UNSET:
        check_timeout("timeout", options["timeout"])
    elif when_held == "skip":
        options["timeout"] = 0
    template = name if callable(name) else Template(name, bare_only=True)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        call = _Call(function, template, options, skip=when_held == "skip")
        if inspect.iscoroutinefunction(_run_by(function)):
            return _coroutine(function, call, in_loop)
        return _function(function, call, blocking)

    return decorate


class _Call:
    """The part that is the same for blocking and for coroutine functions."""

    def __init__(
        self,
        function: Callable[..., Any],
        template: Template | Callable[..., str],
        options: Mapping[str, Any],
        *,
        skip: bool,
    ) -> None:
        _check_kind(function)
        self._template = template
        self.shown = _shown(function)
        self.options = {**options, "label": self.shown}
        self.skip = skip
        self._signature = inspect.signature(function)
        self._check_parameters()

    def name(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        if not isinstance(self._template, Template):
            return check_name(self._template(*args, **kwargs))
        bound = self._signature.bind_partial(*args, **kwargs)
        bound.apply_defaults()
        values = {**bound.kwargs, **bound.arguments}
        return self._template.fill(lambda field: values.get(field.path[0]))

    def done(self, result: Any) -> Any:
        """Refuse what has yet to run: the release comes first."""
        if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
            _end(result)
            raise ConfigurationError(
                f"@locked: {self.shown} returned a {type(result).__name__}, which would run after "
                "the release: put @locked directly above the coroutine function, or have the "
                "function return what it has finished"
            )
        return result

    def _check_parameters(self) -> None:
        parameters = self._signature.parameters.values()
        if not isinstance(self._template, Template):
            return
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            return
        named = [each.name for each in parameters if each.kind is not each.VAR_POSITIONAL]
        for name in (field.path[0] for field in self._template.fields):
            if name not in named:
                raise ConfigurationError(
                    f"@locked: {self.shown} has no parameter {name!r}; "
                    f"it has {', '.join(named) or 'none'}"
                )


def _check_kind(function: Callable[..., Any]) -> None:
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
    """What a call of it runs: below partials, and of an object its ``__call__``."""
    while isinstance(function, partial):
        function = function.func
    return function if inspect.isroutine(function) else cast("Any", type(function)).__call__


def _shown(function: Callable[..., Any]) -> str:
    """What people call it; a partial and most objects have no name of their own."""
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _end(unfinished: Any) -> None:
    """It must not go on without the lock, nor warn that nobody has awaited it."""
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
        except AcquireTimeout:
            if call.skip:
                return None
            raise
        with lease:
            return call.done(function(*args, **kwargs))

    return locked_function


def _coroutine(
    function: Callable[..., Any], call: _Call, in_loop: Callable[[], AsyncLockClient]
) -> Callable[..., Any]:
    @wraps(function)
    async def locked_coroutine(*args: Any, **kwargs: Any) -> Any:
        lock = in_loop().lock(call.name(args, kwargs), **call.options)
        try:
            lease = await lock.acquire()
        except AcquireTimeout:
            if call.skip:
                return None
            raise
        async with lease:
            return call.done(await function(*args, **kwargs))

    return locked_coroutine
