"""Checks of single values, shared by all settings and arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

from lockkit.model.errors import ConfigurationError

KINDS = ("mutex", "reentrant", "read", "write", "semaphore")
MOST_PERMITS = 10_000
LONGEST_OWNER = 200
LONGEST_SHOWN = 200
LONGEST = 366 * 24 * 3600.0
CONTROLS = frozenset(map(chr, [*range(32), 127]))
LIKE_A_SETTING = r"LOCK_?K?ITS?(_|$)"


def nearest(word: object, known: Iterable[str]) -> str | None:
    """The known word that is most like this one, if any is. Capitals do not matter."""
    import difflib

    words = {each.lower(): each for each in known}
    close = difflib.get_close_matches(str(word).lower(), words, n=1)
    return words[close[0]] if close else None


def near_option(location: str, known: Iterable[str]) -> str:
    """A hint at the known option that is most like an unknown one after the ``?`` of a URL. The
    text of the URL is not shown: it may be a secret."""
    from urllib.parse import parse_qsl

    known = sorted(known)
    said = dict(parse_qsl(location.partition("?")[2], keep_blank_values=True))
    close = (nearest(word, known) for word in said if word not in known)
    return next((f"; did you mean {found!r}?" for found in close if found), "")


class Unshown(str):
    """A text from a URL. Errors do not show it: it may be a secret in the wrong place."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'…'"


def unknown_key(
    where: str, key: object, known: Iterable[str], what: str = "key"
) -> ConfigurationError:
    """The error for an unknown key. It names the nearest known one."""
    known = sorted(known)
    close = nearest(key, known)
    hint = f"did you mean {close!r}?" if close else f"it has {', '.join(known) or 'none'}"
    return ConfigurationError(f"{where} has no {what} {key!r}: {hint}")


def check_setting_names(names: Iterable[object], known: Sequence[str]) -> None:
    """Raise ConfigurationError for a name that looks like one of lockkit's settings but is not.

    Without this error, a misspelt setting would be ignored, and would protect nothing.
    """
    for name in names:
        if isinstance(name, str) and re.match(LIKE_A_SETTING, name) and name not in known:
            close = _nearest_setting(name, known)
            hint = (
                f"did you mean {close}?"
                if close
                else f"it has {', '.join(known)}, and LOCKKIT = {{'default': {{…}}}} has the keys "
                "of an alias, such as LOCATION and KEY_PREFIX"
            )
            raise ConfigurationError(f"lockkit has no setting {name}: {hint}")


def _nearest_setting(name: str, known: Iterable[str]) -> str | None:
    """By what comes after LOCKKIT_: that alone makes any two of them alike."""
    _, _, word = name.partition("_")
    if not word:
        return nearest(name, known)
    words = {each.partition("_")[2]: each for each in known}
    close = nearest(word, filter(None, words))
    return words[close] if close else None


Check = Callable[[str, Any], Any]
"""Takes a key, which the error names, and any value. Returns the checked value, or raises
ConfigurationError."""


def read_mapping(
    source: str, mapping: object, checks: Mapping[str, Check], kind: str = "a mapping"
) -> dict[str, Any]:
    """The checked values of a mapping, by their keys in lower case. Raises ConfigurationError,
    which names the key and the remedy."""
    if not isinstance(mapping, Mapping):
        raise ConfigurationError(f"{source} must be {kind}, not {type(mapping).__name__}")
    for key in mapping:
        if key not in checks:
            raise unknown_key(source, key, checks)
    return {key.lower(): checks[key](f"{source}[{key!r}]", mapping[key]) for key in mapping}


def required(check: Check, remedy: str) -> Check:
    """The same check for a value that must not be None, with a remedy of its own."""

    def checked(key: str, value: object) -> Any:
        if value is not None:
            with suppress(ConfigurationError):  # its remedy may be None
                return check(key, value)
        raise wrong(key, value, remedy)

    return checked


def optional(check: Check) -> Check:
    """The same check, or None."""
    return lambda key, value: None if value is None else check(key, value)


def one_of(*values: str) -> Check:
    def check(key: str, value: object) -> object:
        if isinstance(value, str) and value in values:
            return value
        raise wrong(key, value, " or ".join(map(repr, values)))

    return check


def check_flag(key: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise wrong(key, value, "True or False")


def check_text(key: str, value: object) -> str:
    if isinstance(value, str) and value:
        return value
    raise wrong(key, value, "a name")


def check_password(key: str, value: object) -> str | Callable[[], object]:
    """The error never shows the value."""
    if isinstance(value, str) or callable(value):
        return value
    raise ConfigurationError(
        f"{key} is of type {type(value).__name__}; it must be a string, or a function that "
        "returns one"
    )


def check_path(key: str, value: object) -> object:
    if isinstance(value, str) or hasattr(value, "__fspath__"):
        return value
    # Not shown: it may be what is in the file.
    raise wrong(key, Unshown(), f"the path of a file, not of type {type(value).__name__}")


def check_location(key: str, value: object) -> object:
    """It is not shown. A newline at the end of a file with a URL would name another place."""
    if isinstance(value, str) and (value != value.strip() or not CONTROLS.isdisjoint(value)):
        raise ConfigurationError(
            f"{key} has white space around it or a control character in it, such as the newline "
            "at the end of a file: remove that"
        )
    return value


def check_strings(
    key: str, value: object, remedy: str = "a list of strings that is not empty"
) -> list[str]:
    if isinstance(value, (list, tuple)) and value and all(isinstance(v, str) for v in value):
        return list(value)
    raise wrong(key, value, remedy)


def check_ttl(key: str, value: object) -> float:
    """To the microsecond, as stores keep it: what is left of a grant is compared with it."""
    return round(_seconds(key, value, "seconds, at least 0.01, such as 30", least=0.01), 6)


def check_timeout(key: str, value: object) -> float | None:
    if value is None:
        return None
    return _seconds(key, value, "seconds, 0 (do not wait) or None (wait for ever)", least=0.0)


def check_count(key: str, value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise wrong(key, value, "a whole number, or None for no limit")
    return value


def check_fence(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong("fence", value, "a fencing token, which is a whole number")
    return value


def check_label(value: object) -> str:
    if not isinstance(value, str):
        raise wrong("label", value, "a string")
    return value


CO_COROUTINE = 0x80  #: ``inspect.CO_COROUTINE``, without the time to import inspect


def check_on_lost(value: object, *, is_awaited: bool) -> Callable[..., object] | None:
    if value is not None and not callable(value):
        raise wrong("on_lost", value, "a function, which gets the lease")
    flags: int = getattr(getattr(value, "__code__", None), "co_flags", 0)
    if flags & CO_COROUTINE and not is_awaited:
        raise wrong("on_lost", value, "no coroutine function, which only lockkit.aio awaits")
    return value


def check_callable(key: str, value: object) -> Callable[..., Any] | None:
    """A hook of the settings: a callable, or the dotted path of one; None if there is none."""
    if value is None or callable(value):
        return value
    module, _, name = value.rpartition(".") if isinstance(value, str) else ("", "", "")
    if not module:
        raise wrong(key, value, "a callable or the dotted path of one")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"{key} is {value!r}, and cannot be imported: {error}") from error
    if not callable(found):
        raise ConfigurationError(f"{key} is {value!r}, and that is not callable")
    return found  # type: ignore[no-any-return]


def check_permits(value: object) -> int:
    """The number of leases that may share a name. It is limited because each step of the store
    reads them all."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_PERMITS:
        raise wrong("permits", value, f"a whole number from 1 to {MOST_PERMITS}")
    return value


def check_kind(kind: object, permits: object) -> None:
    """Check the name of a kind of lock, and the number of permits, which only a semaphore has."""
    if kind not in KINDS:
        raise wrong("kind", kind, "one of " + ", ".join(map(repr, KINDS)))
    if kind == "semaphore":
        check_permits(permits)
    elif permits is not None:
        raise wrong("permits", permits, "left out, unless kind is 'semaphore'")


def check_owner(value: object) -> str:
    if not isinstance(value, str) or len(value) > LONGEST_OWNER or not value.isprintable():
        raise wrong("owner", value, f"at most {LONGEST_OWNER} printable characters")
    return value


def _seconds(key: str, value: object, remedy: str, *, least: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise wrong(key, value, remedy)
    if not least <= value <= LONGEST:  # false for NaN
        raise wrong(key, value, remedy)
    return float(value)


def wrong(key: str, value: object, remedy: str) -> ConfigurationError:
    return ConfigurationError(f"{key} is {_shown(value)}; it must be {remedy}")


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # CPython refuses to write thousands of digits
        return "an int of thousands of digits"
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"
