"""Faults in the way routes and settings fit together, found before the first request.

An adapter describes its routes, and shows what is found: Django as system checks, Flask by
``flask locks check`` and in the log.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

from lockkit.model.names import Field
from lockkit.model.types import Finding

if TYPE_CHECKING:
    from lockkit.web.view_lock import ViewLock

SENT = ("json", "form", "query", "header")
"""Sources in which a client chooses the text."""

SAMPLES = (
    *("1", "2024", "x", "abc", "A1", "a-b", "ABC-123", "12345678", "3.14", "en"),
    "0badc0de-0000-4000-8000-000000000001",
)
"""Values for the parameters of a URL, to see which paths it may have."""

AGENTS = "ddtrace.contrib.", "newrelic.api.", "newrelic.hooks."
"""Packages whose functions agents put around each view. Not all of an agent: a part of New Relic's
makes such wrappers of functions of the project's."""

MOST_COMPARED = 1000
"""The most URLs that are compared to find the nearest one."""


class Route(NamedTuple):
    """One route to a view with ``@lock_view``."""

    view: str  #: its name, for people
    shown: str  #: the route, for people
    view_locks: tuple[ViewLock[Any], ...]
    parameters: Mapping[str, bool]  #: of the URL: whether a client chooses their text


class Url(NamedTuple):
    """One URL of the project: the paths that it may have, which begin with a slash."""

    shown: str
    paths: Mapping[str, Sequence[str]]  #: by language; most projects have only ""


def route_findings(routes: Iterable[Route], aliases: Collection[str]) -> Iterator[Finding]:
    """Find aliases that the settings lack, fields that a route lacks, and texts for which the
    template has no conversion. ``aliases``: empty if they are not known."""
    found = [each for route in routes for each in _of_route(route, aliases)]
    yield from dict.fromkeys(found)  # a view may have several routes


def _of_route(route: Route, aliases: Collection[str]) -> Iterator[Finding]:
    for alias in {view_lock.alias for view_lock in route.view_locks}.difference(aliases):
        if aliases:
            yield Finding(
                "missing-alias",
                f"{route.view} has lock_view(alias={alias!r}), and LOCKKIT has no such alias",
                f"Add {alias!r} to LOCKKIT, or correct the view.",
            )
    templates = [template for view_lock in route.view_locks for template in view_lock.templates]
    for field in (field for template in templates for field in template.fields):
        if field.source == "kwargs" and field.path[0] not in route.parameters:
            yield _missing(field, route)
        elif not field.conversion and _is_text(field, route.parameters):
            yield _unconverted(field, route)


def _is_text(field: Field, parameters: Mapping[str, bool]) -> bool:
    return field.source in SENT or (field.source == "kwargs" and parameters[field.path[0]])


def _missing(field: Field, route: Route) -> Finding:
    has = ", ".join(f"{{{name}}}" for name in route.parameters) or "no parameters"
    return Finding(
        "missing-field",
        f"{route.view} has lock_view with {field}, and its route {route.shown!r} has {has}",
        "Correct the template or the route: every request would be an error.",
    )


def _unconverted(field: Field, route: Route) -> Finding:
    as_ = field.text
    return Finding(
        "bare-field",
        f"{route.view} has lock_view with {field}, a text that the client chooses: '1', '01' and "
        f"' 1' are three locks, but one row if the column is a number",
        f"Say what it stands for: {{{as_}:int}}, {{{as_}:uuid}}, or {{{as_}:lower}} if upper "
        f"and lower case are the same; {{{as_}:str}} if each text is a value of its own.",
    )


def below_partials(view: Any) -> tuple[Any, set[str]]:
    """The view that ``functools.partial`` calls, and the parameters that it fills in."""
    given: set[str] = set()
    while isinstance(view, functools.partial):
        given |= view.keywords.keys()
        view = view.func
    return view, given


def wrappers(view: Any) -> Iterator[Any]:
    """A view, and each function that it wraps by ``functools.wraps``; the outermost first."""
    yield view
    while (view := getattr(view, "__wrapped__", None)) is not None:
        yield view


def module_of(function: Any) -> str:
    """The module of a function's code: ``functools.wraps`` copies ``__module__`` from another.

    Empty for anything else. A transparent proxy, as wrapt makes them, shows what is below it.
    """
    return str(function.__globals__.get("__name__", "")) if type(function) is FunctionType else ""


def module_behind(function: Any) -> str:
    """As ``module_of``, also through a transparent proxy: to find something, never to trust it."""
    return str(getattr(function, "__globals__", {}).get("__name__", ""))


def is_measured(layer: Any) -> bool:
    """Whether this is what an agent puts around a view to measure it: no check of the project's.
    Only what the layer has itself counts: a transparent proxy shows what is below it."""
    if not hasattr(type(layer), "_self_wrapper"):
        return False
    return module_of(layer._self_wrapper).startswith(AGENTS)


def unknown_finding(view: str, route: str, check: str, line: str) -> Finding:
    """``check``: the part that may be a check. ``line``: the line to add to the view, and where."""
    return Finding(
        "replay-unknown",
        f"{view} at {route!r} has {check}, which may check who asks: so no answer of its orders "
        f"is repeated, and a duplicate gets 409 order-completed",
        f"{line}; or set LOCKKIT_ORDERS['AUTHORIZE_REPLAY'].",
    )


def path_findings(patterns: Iterable[re.Pattern[str]], urls: Iterable[Url]) -> Iterator[Finding]:
    """Patterns of PATHS that fit no URL, and URLs that they fit in some languages only.

    Limit: a parameter is tried with SAMPLES. A pattern that is stricter about it seems to fit no
    URL.
    """
    patterns, urls = list(patterns), list(urls)
    every = [paths for url in urls for paths in url.paths.values() if paths]
    for pattern in patterns:
        if not any(_fits([pattern], paths) for paths in every):
            yield _fits_none(pattern, [paths[0] for paths in every[:MOST_COMPARED]])
    for url in urls:
        fits = {lang: _fits(patterns, paths) for lang, paths in url.paths.items() if paths}
        if any(fits.values()) and not all(fits.values()):
            yield _fits_some(url, fits)


def fillings(regexes: Mapping[str, str]) -> list[dict[str, str]]:
    """Values for the parameters of a URL that fit their regexes; empty if one fits no sample."""
    fitting = {
        name: [sample for sample in SAMPLES if re.fullmatch(regex, sample)]
        for name, regex in regexes.items()
    }
    if not all(fitting.values()):
        return []
    rounds = max(map(len, fitting.values()), default=1)
    return [{name: fits[n % len(fits)] for name, fits in fitting.items()} for n in range(rounds)]


def _fits(patterns: Iterable[re.Pattern[str]], paths: Iterable[str]) -> bool:
    return any(pattern.search(path) for pattern in patterns for path in paths)


def _fits_none(pattern: re.Pattern[str], paths: Sequence[str]) -> Finding:
    import difflib

    meant = "/" + pattern.pattern.lstrip("^/")
    close = difflib.get_close_matches(meant, paths, n=1, cutoff=0.0)
    like = f"; the nearest path is {close[0]!r}" if close else ""
    return Finding(
        "path-of-no-route",
        f"LOCKKIT_ORDERS['PATHS'] has {pattern.pattern!r}, which fits no route that takes one of "
        f"METHODS{like}. So it makes no orders: two clicks are two orders",
        "A path begins with a slash (with i18n_patterns, the language comes next), and a $ comes "
        "after its last slash. Correct PATHS, or the routes.",
    )


def _fits_some(url: Url, fits: Mapping[str, bool]) -> Finding:
    without = ", ".join(language for language, fit in fits.items() if not fit)
    path = next(url.paths[language][0] for language, fit in fits.items() if not fit)
    return Finding(
        "path-of-some-languages",
        f"LOCKKIT_ORDERS['PATHS'] fits {url.shown!r} in some languages, but not in {without}: at "
        f"{path!r} two clicks are two orders",
        r"Let the pattern match any language, such as r'^/([a-z-]+/)?orders/'.",
    )
