"""The views that URLs lead to, for the system checks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from django.conf import settings
from django.urls import URLPattern, URLResolver, get_resolver
from django.urls.resolvers import LocalePrefixPattern, RegexPattern
from django.utils.regex_helper import normalize

from lockkit.web.route_checks import fillings


class Routed(NamedTuple):
    """A view, and the URL patterns that lead to it, the outermost first."""

    view: Callable[..., Any]
    patterns: tuple[Any, ...]
    given: frozenset[str]  #: parameters that the URLconf itself fills in
    known: dict[str, list[str]]  #: paths without the language, by the text of the route

    @property
    def shown(self) -> str:
        return "".join(str(pattern) for pattern in self.patterns)

    def paths(self) -> list[str]:
        """Some paths that lead to the view, in the active language."""
        start, patterns = "/", self.patterns
        if isinstance(patterns[0], LocalePrefixPattern):  # there is none further in
            start, patterns = "/" + patterns[0].language_prefix, patterns[1:]
        text = "".join(map(str, patterns))  # the same in many languages
        if text not in self.known:
            self.known[text] = ["".join(pieces) for pieces in _filled(patterns)]
        return [start + path for path in self.known[text]]

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of the URL with their converters; None: a group of a regex."""
        found: dict[str, Any] = {}
        for pattern in self.patterns:
            if isinstance(pattern, RegexPattern):
                found |= dict.fromkeys(pattern.regex.groupindex)
            found |= pattern.converters
        return found


def routes() -> list[Routed]:
    """The routes of ROOT_URLCONF; none if it cannot be imported, which Django's checks report."""
    if not getattr(settings, "ROOT_URLCONF", None):
        return []
    try:
        return list(_below(get_resolver(), (), frozenset()))
    except Exception:  # noqa: BLE001  the project's modules run here
        return []


def _below(
    resolver: URLResolver, patterns: tuple[Any, ...], given: frozenset[str]
) -> Iterator[Routed]:
    for entry in resolver.url_patterns:
        inner = (*patterns, entry.pattern)
        if isinstance(entry, URLPattern):
            yield Routed(entry.callback, inner, given | entry.default_args.keys(), {})
        else:
            yield from _below(entry, inner, given | entry.default_kwargs.keys())


def _filled(patterns: tuple[Any, ...]) -> Iterator[tuple[str, ...]]:
    """Texts that the patterns match, with the same value of a parameter in all of them.

    No converter sees a value: it may query the database. There are none if ``reverse`` cannot read
    a pattern.
    """
    try:
        forms = [_form(pattern) for pattern in patterns]
    except ValueError:  # such as (?i:orders)
        return
    regexes = {name: regex for _, each in forms for name, regex in each.items()}
    for values in fillings(regexes):
        pieces = tuple(form % values for form, _ in forms)
        pairs = zip(patterns, pieces, strict=True)
        if all(pattern.regex.search(piece) for pattern, piece in pairs):
            yield pieces


def _form(pattern: Any) -> tuple[str, dict[str, str]]:
    """A pattern with ``%(name)s`` for its parameters, and a regex for each of these."""
    form, names = normalize(pattern.regex.pattern)[0]
    form = re.sub(r"%(?!\(\w+\)s)", "%%", form)
    known = {name: converter.regex for name, converter in pattern.converters.items()}
    return form, {name: known.get(name, ".+") for name in names}
