"""``@locked``: a function that runs while it holds a lock, for tasks, jobs and commands."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, cast

from lockkit import process
from lockkit.client import LockClient
from lockkit.config import default_url, load_backend, settings_from_url
from lockkit.decorating import refuse_bare
from lockkit.errors import AcquireTimeout, ConfigurationError
from lockkit.naming import Template, check_name
from lockkit.types import UNSET, Unset
from lockkit.values import check_timeout, check_ttl

if TYPE_CHECKING:
    from lockkit.aio import AsyncLockClient
    from lockkit.per_loop import PerLoop

__all__ = ["Clients", "locked", "locked_by"]

F = TypeVar("F", bound=Callable[..., Any])

WhenHeld = Literal["raise", "skip"]


class Clients(Protocol):
    """Where the locks are. Asked at each call, so that decorating needs no settings."""

    def blocking(self) -> LockClient: ...

    def in_loop(self) -> AsyncLockClient:
        """The one of the running event loop."""


def locked(
    name: str | Callable[..., str],
    *,
    ttl: float | Unset = UNSET,
    timeout: float | None | Unset = UNSET,
    when_held: WhenHeld = "raise",
    lease_as: str | None = None,
) -> Callable[[F], F]:
    """Have a function hold the lock ``name`` while it runs, in the store of $LOCKKIT_URL.

    For functions, methods, coroutine functions, partials and callable objects; put it below
    ``@app.task`` and its like, and directly above a coroutine function: what hides one is refused
    when it is called, as is all else that would go on after the release (a generator, a task).
    name: a template over the arguments, such as ``"report:{day}"``, or a callable that gets the
    arguments and returns a name. The name is what ``lockkit.name`` makes, and ``@lock_view``.
    ttl: seconds the lease lives unrenewed. timeout: seconds to wait (0: do not; None: for ever).
    when_held: "raise" LockHeld, AcquireTimeout or TooManyWaiters, or "skip" the call and return
    None. lease_as: name of the keyword argument in which the function gets the lease.

    Raises ConfigurationError or InvalidName at once for what is wrong in the decoration. A call
    raises ConfigurationError if what it returns has yet to run, a BackendError if the store fails,
    and LeaseLost at its end if the lease was lost.
    """
    refuse_bare("locked", name)
    return locked_by(
        _environment,
        name,
        ttl=ttl,
        timeout=timeout,
        when_held=when_held,
        lease_as=lease_as,
    )


def locked_by(
    clients: Clients,
    name: str | Callable[..., str],
    *,
    ttl: float | Unset = UNSET,
    timeout: float | None | Unset = UNSET,
    when_held: WhenHeld = "raise",
    lease_as: str | None = None,
    **options: Any,
) -> Callable[[F], F]:
    """``locked``, for adapters: with their clients, and options of those clients' ``lock``."""
    if when_held not in ("raise", "skip"):
        raise ConfigurationError(f"when_held is {when_held!r}; it must be 'raise' or 'skip'")
    if ttl is not UNSET:
        options["ttl"] = check_ttl("ttl", ttl)
    if timeout is not UNSET:
        options["timeout"] = check_timeout("timeout", timeout)
    template = name if callable(name) else Template(name, bare_only=True)

    def decorate(function: F) -> F:
        call = _Call(function, template, lease_as, options, skip=when_held == "skip")
        around = _coroutine if inspect.iscoroutinefunction(_run_by(function)) else _function
        return cast("F", around(function, call, clients))

    return decorate


class _Call:
    """What is the same for blocking and for coroutine functions."""

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
        self._signature = inspect.signature(function)
        self._template = template
        self._lease_as = lease_as
        self.shown = _shown(function)
        self.options = {**options, "label": self.shown}
        self.skip = skip
        self._check_parameters()

    def name(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        if not isinstance(self._template, Template):
            return check_name(self._template(*args, **kwargs))
        bound = self._signature.bind_partial(*args, **kwargs)
        bound.apply_defaults()
        values = {**bound.kwargs, **bound.arguments}
        return self._template.fill(lambda field: values.get(field.path[0]))

    def with_lease(self, kwargs: Mapping[str, Any], lease: object) -> dict[str, Any]:
        return dict(kwargs) if self._lease_as is None else {**kwargs, self._lease_as: lease}

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
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            return
        wanted = [self._lease_as] if self._lease_as else []
        if isinstance(self._template, Template):
            wanted += [field.path[0] for field in self._template.fields]
        for name in wanted:
            if name not in self._signature.parameters:
                raise ConfigurationError(
                    f"@locked: {self.shown} has no parameter {name!r}; "
                    f"it has {', '.join(self._signature.parameters) or 'none'}"
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


def _function(function: Callable[..., Any], call: _Call, clients: Clients) -> Callable[..., Any]:
    @wraps(function)
    def locked_function(*args: Any, **kwargs: Any) -> Any:
        lock = clients.blocking().lock(call.name(args, kwargs), **call.options)
        try:
            lease = lock.acquire()
        except AcquireTimeout:
            if call.skip:
                return None
            raise
        with lease:
            return call.done(function(*args, **call.with_lease(kwargs, lease)))

    return locked_function


def _coroutine(function: Callable[..., Any], call: _Call, clients: Clients) -> Callable[..., Any]:
    @wraps(function)
    async def locked_coroutine(*args: Any, **kwargs: Any) -> Any:
        lock = clients.in_loop().lock(call.name(args, kwargs), **call.options)
        try:
            lease = await lock.acquire()
        except AcquireTimeout:
            if call.skip:
                return None
            raise
        async with lease:
            return call.done(await function(*args, **call.with_lease(kwargs, lease)))

    return locked_coroutine


class _Environment:
    """Clients of the store that $LOCKKIT_URL names now: one per process, or per loop."""

    def __init__(self) -> None:
        self._clients: dict[str, LockClient] = {}
        self._in_loops: PerLoop[AsyncLockClient] | None = None
        self._renew_mutex()
        process.after_fork(self._renew_mutex)

    def _renew_mutex(self) -> None:
        """A thread that stayed in the parent may have been making a client."""
        self._mutex = threading.Lock()

    def blocking(self) -> LockClient:
        url = default_url()
        client = self._clients.get(url)
        if client is None:
            with self._mutex:
                client = self._clients.get(url) or self._make(url)
                self._clients[url] = client
        return client

    def in_loop(self) -> AsyncLockClient:
        """Who locks without asyncio does not import it."""
        clients = self._in_loops
        if clients is None:
            from lockkit import aio
            from lockkit.per_loop import PerLoop

            with self._mutex:
                clients = self._in_loops = self._in_loops or PerLoop(aio.connect)
        return clients[default_url()]

    def _make(self, url: str) -> LockClient:
        settings = settings_from_url(url)
        return LockClient(load_backend(settings), settings)


_environment = _Environment()
