"""The rules of ``@lock_view`` for every framework: which lock, how long to wait, what to refuse.

An adapter's ``lock_view`` is a ``ViewLock``, which is called with the view. For each request it
uses these, in this order:

1. ``names_for(request, …)``: the names, or a FieldError;
2. ``await acquire(client, names, settings, label)``: a lease, or an error;
3. ``refusal_of(error, settings.busy_status)``: the status, headers and text of the answer to
   either error, if there is no ``on_busy``;
4. ``give_back(lease)`` when the work is committed or undone.

The adapter adds transactions, the response class, and the moment of the release.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Never, TypeVar

from lockkit.engine.waiting import THIS_VIEW
from lockkit.leases.decorating import refuse_bare
from lockkit.leases.lease import value
from lockkit.model.checks import (
    check_count,
    check_kind,
    check_timeout,
    check_ttl,
    read_mapping,
    wrong,
)
from lockkit.model.errors import (
    ConfigurationError,
    InvalidName,
    LockHeld,
    TooManyWaiters,
)
from lockkit.model.names import Template, check_name
from lockkit.model.options import check_options
from lockkit.model.settings import DEFAULT_ALIAS
from lockkit.model.types import UNSET, Unset
from lockkit.web.name_fields import FieldError, RequestView, lock_name
from lockkit.web.waiting_room import WaitingRoom

if TYPE_CHECKING:
    from lockkit.leases.aio_client import AsyncLease
    from lockkit.leases.client import Lease
    from lockkit.leases.multi import AsyncMultiLease, MultiLease

    AnyLease = Lease | MultiLease
    AnyAsyncLease = AsyncLease | AsyncMultiLease

OnBusy = TypeVar("OnBusy", bound=Callable[..., Any])
MARK = "_lockkit_view_locks"
"""Attribute of a decorated view: the ``ViewLock`` objects that lock it."""

EXAMPLE = "stock:{sku:str}"

ERRORS = range(400, 600)
"""Error statuses of HTTP."""


@dataclass(frozen=True, slots=True)
class ViewSettings:
    """LOCKKIT_VIEWS, validated."""

    timeout: float | None = 2.0  #: seconds a request waits; 0: not at all; None: for ever
    busy_status: int = 423  #: status of the answer if the lock is not granted in time
    max_waiters: int | None = 8  #: requests of this process that may wait; None: any number


def read_view_settings(mapping: Mapping[str, Any] | None) -> ViewSettings:
    """Validate the mapping. Raises ConfigurationError that names the key and the remedy."""
    values = read_mapping("LOCKKIT_VIEWS", {} if mapping is None else mapping, _CHECKS)
    return ViewSettings(**values)


def _status(key: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value in ERRORS:
        return value
    raise wrong(key, value, "an error status, such as 423 or 409")


_CHECKS = {"TIMEOUT": check_timeout, "BUSY_STATUS": _status, "MAX_WAITERS": check_count}

NESTED = 7
"""The most ``lock_view`` around another one of which is known that the view has their locks."""

waiting_room = WaitingRoom()
"""The waiting room of this process, for all aliases, views and frameworks."""

OPTIONS = ("timeout", "ttl", "alias", "kind", "permits", "on_busy")


class ViewLock(Generic[OnBusy]):
    """One use of ``lock_view``: what is locked, and how. It is made at import, and holds nothing.

    Each of ``names`` is a template, or a callable that gets the adapter's arguments and returns a
    name. Several names are locked all or none, and their lease is a ``MultiLease``. ``timeout`` and
    ``ttl`` are in seconds (timeout 0: do not wait; None: for ever); LOCKKIT_VIEWS and the alias
    have the defaults. ``kind`` and ``permits`` are those of the client's ``multi``. ``on_busy``
    makes the adapter's answer to a busy lock. Raises ConfigurationError for a wrong argument.
    """

    BUSY_TAKES: ClassVar[tuple[str, ...]] = ()
    """The arguments of ``on_busy``, by the adapter."""

    def __init__(
        self,
        *names: str | Callable[..., str],
        timeout: float | Unset | None = UNSET,
        ttl: float | Unset = UNSET,
        alias: str = DEFAULT_ALIAS,
        kind: str = "mutex",
        permits: int | None = None,
        on_busy: OnBusy | None = None,
        **unknown: Never,
    ) -> None:
        refuse_bare("lock_view", names[0] if names else None, EXAMPLE)
        if "reentrant" in unknown:
            raise ConfigurationError("lock_view has no option 'reentrant': say kind=\"reentrant\"")
        check_options("lock_view", unknown, OPTIONS)
        if not names:
            raise ConfigurationError(f"lock_view needs a name: lock_view({EXAMPLE!r})")
        self._names = [name if callable(name) else _template(name) for name in names]
        self.templates = [name for name in self._names if isinstance(name, Template)]
        fields = [field for each in self.templates for field in each.fields]
        self.needs_user = any(field.source == "user" for field in fields)  #: reading it may query
        self.timeout = timeout if timeout is UNSET else check_timeout("timeout", timeout)
        ttl = ttl if ttl is UNSET else check_ttl("ttl", ttl)
        self.alias = alias
        check_kind(kind, permits)
        self._options = {"kind": kind, "permits": permits, "ttl": ttl}
        self._values = tuple(self._options.values())
        if on_busy is not None:
            self._check_on_busy(on_busy)
        self._on_busy = on_busy

    def _check_on_busy(self, on_busy: object) -> None:
        """Raise ConfigurationError if it cannot be called: the first busy lock would find that."""
        if not callable(on_busy):
            raise ConfigurationError(
                f"on_busy of lock_view is {on_busy!r}; it must be a function that makes a response"
            )
        try:
            inspect.signature(on_busy).bind(*self.BUSY_TAKES)
        except TypeError:
            raise ConfigurationError(
                f"on_busy of lock_view is {on_busy!r}; it must take ({', '.join(self.BUSY_TAKES)})"
            ) from None
        except (ValueError, NameError):  # some do not tell, or have types that only checkers know
            return

    def refuse_as_view(self, view: object, args: object, kwargs: object) -> None:
        """Raise ConfigurationError if this does not decorate a view, but is called as one.

        That happens with ``lock_view(page)`` in a route, or with ``@lock_view`` above an object
        that hides the view's function. The view is then taken for a name. Also if it decorates a
        generator: Django Ninja and Flask make a streaming body of that.
        """
        if args or kwargs or not callable(view):
            raise ConfigurationError(
                f"lock_view needs the name of a lock, and then the view: write "
                f"@lock_view({EXAMPLE!r}) above the view, or lock_view({EXAMPLE!r})(view)"
            )
        if inspect.isgeneratorfunction(view) or inspect.isasyncgenfunction(view):
            raise ConfigurationError(
                f"{view!r} is a generator, so it would run after the release of its lock_view: "
                f"take the lock by hand in its body"
            )

    def names_for(self, request: RequestView, /, *args: Any, **kwargs: Any) -> list[str]:
        """The names for one request; a callable gets ``args`` and ``kwargs``.

        Raises FieldError (the request's fault) or ConfigurationError (the programmer's).
        """
        return [
            lock_name(name, request) if isinstance(name, Template) else _name_by(name, args, kwargs)
            for name in self._names
        ]

    async def acquire(
        self, client: Any, names: Sequence[str], settings: ViewSettings, label: str
    ) -> Any:
        """Wait for the lease and return it: an async lease if the client is async. With a blocking
        client this never suspends.

        Raises AcquireTimeout, TooManyWaiters (at once) or a BackendError; LeaseLost if one of
        several names is lost while it waits for another.
        """
        timeout = settings.timeout if self.timeout is UNSET else self.timeout
        lock = self._lock(client, names, timeout, label)
        if timeout == 0:
            return await value(lock.acquire())
        with waiting_room.place(settings.max_waiters) as placed:
            if placed:
                return await value(lock.acquire())
        try:
            return await value(lock.acquire(timeout=0))
        except LockHeld as held:  # a free lock is granted even if the waiting room is full
            raise TooManyWaiters(
                f"MAX_WAITERS requests of this process wait already, and {held}",
                name=held.name,
                holder=held.holder,
                retry_after=held.retry_after,
                own=held.own,
            ) from None

    def _lock(self, client: Any, names: Sequence[str], timeout: float | None, label: str) -> Any:
        """The lock. The client keeps checked options, by their values: there are few, whereas a
        ``ViewLock``, or its timeout, may be made for each request."""
        if len(names) > 1:
            return client.multi(*names, **self._options, timeout=timeout, label=label)
        make = client._makers.get(self._values)
        if make is None:
            make = client._makers[self._values] = client._maker(**self._options)
        lock = make(names[0], label)
        lock.timeout = timeout
        return lock

    def __repr__(self) -> str:
        return f"lock_view({', '.join(map(repr, self._names))}, alias={self.alias!r})"


def note_lease(lease: object) -> None:
    """Have code of the view told if it asks for a lock that the view itself has. An adapter calls
    this where the view runs: in its task or thread."""
    THIS_VIEW.set((weakref.ref(lease), *THIS_VIEW.get()[:NESTED]))


def mark(wrapper: object, view_lock: ViewLock[Any]) -> None:
    """Note on a decorated view what locks it. ``wraps`` copies the note to decorators above."""
    vars(wrapper)[MARK] = (view_lock, *getattr(wrapper, MARK, ()))


def view_locks_of(places: Iterable[object]) -> tuple[Any, ...]:
    """The ``ViewLock`` objects of a view, each once, the outermost first. ``places``: the objects
    that may have the mark."""
    return tuple(dict.fromkeys(each for place in places for each in getattr(place, MARK, ())))


def _template(text: str) -> Template:
    template = Template(text)
    if not template.fields:
        check_name(text)  # so that a programming error is found at import
    return template


def _name_by(make: Callable[..., str], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    try:
        name: object = make(*args, **kwargs)
        if isinstance(name, str):
            return check_name(name)
    except FieldError:
        raise
    except InvalidName as error:
        raise FieldError("the request makes no valid name") from error
    raise ConfigurationError(f"{make!r} must return a name, not {type(name).__name__}")
