"""The keyword arguments of clients and locks, for type checkers and for errors at run time."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypedDict

from lockkit.model.checks import unknown_key
from lockkit.model.types import Unset


class ClientOptions(TypedDict, total=False):
    """The options of ``connect``: the settings of an alias in lower case. Durations are seconds."""

    key_prefix: str
    ttl: float
    acquire_timeout: float | None
    max_hold: float | None
    max_queue: int | None
    options: Mapping[str, Any]
    backend: str | None


class LockOptions(TypedDict, total=False):
    """The options of every kind of lock: see ``lock``."""

    ttl: float | Unset
    timeout: float | None | Unset
    label: str
    fair: bool
    on_lost: Callable[[Any], object] | None


class OwnedOptions(LockOptions, total=False):
    """The options of locks that an owner may enter again."""

    owner: str


class MutexOptions(OwnedOptions, total=False):
    """The options of ``lock``."""

    reentrant: bool


class KindOptions(OwnedOptions, total=False):
    """The options of ``multi``."""

    permits: int | None


def check_options(where: str, given: Mapping[str, object], known: Iterable[str]) -> None:
    """Raise ConfigurationError for an option that ``where`` does not have, and name the nearest."""
    for key in given:
        if key not in known:
            raise unknown_key(where, key, known, "option")
