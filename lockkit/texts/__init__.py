"""The texts that people read when a request is refused, in their language.

A catalogue is a TOML file with a table for each code of a refusal (``title``, ``detail`` and
``advice``, which a browser shows), and a table ``page`` for the page around it. lockkit has ``en``
and ``zh-hans``; ``add`` adds another:

>>> from lockkit import texts
>>> texts.catalogue("zh-Hans-CN").language
'zh-hans'
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Mapping

__all__ = ["DEFAULT", "Catalogue", "Text", "add", "catalogue"]

DEFAULT = "en"
_OURS = {"en": "en", "zh": "zh-hans", "zh-hans": "zh-hans"}


class Text(NamedTuple):
    """A refusal: its heading, what has happened, and what to do now (may be empty)."""

    title: str
    detail: str
    advice: str


class Catalogue:
    """The texts of one language."""

    def __init__(self, language: str, entries: Mapping[str, Any]) -> None:
        self.language = language
        self._entries = entries

    def has(self, code: str) -> bool:
        """Whether it has each text that English has for this code, or for ``page``."""
        return set(_ours(DEFAULT)[code]) <= set(self._entries.get(code, {}))

    def text(self, code: str, values: Mapping[str, object]) -> Text:
        """The text for this code, of which ``has`` must be true."""
        entry = self._entries[code]
        return Text(*(entry.get(part, "").format_map(values) for part in Text._fields))

    def page(self, key: str) -> str:
        """A text of the page around a refusal."""
        return str({**_ours(DEFAULT)["page"], **self._entries.get("page", {})}[key])


_added: dict[str, Catalogue] = {}


def add(language: str, path: str | os.PathLike[str]) -> None:
    """Use the catalogue in this file for a language such as ``fr`` or ``pt-br``.

    It takes precedence over lockkit's own catalogue of that language, which fills its gaps. If
    lockkit has none, a refusal that lacks a text is shown in English. Raises OSError, and
    ValueError if the file is not TOML, has a table or a text that no refusal has, has a value that
    is not in a table, or has a text with a placeholder that cannot be filled in.
    """
    tag = _tag(language)
    with open(path, "rb") as file:
        theirs = _parsed(file.read())
    for code, texts in theirs.items():
        if not isinstance(texts, dict):
            raise ValueError(f"the catalogue {tag!r}: {code} must be a table of texts")  # noqa: TRY004
        _check_word(tag, code, _ours(DEFAULT))
        for part in texts:
            _check_word(f"{tag}: {code}", part, {*_ours(DEFAULT)[code], *Text._fields})
        _check(tag, code, theirs)
    ours = _ours(_OURS[tag]) if tag in _OURS else {}
    _added[tag] = Catalogue(tag, {c: ours.get(c, {}) | theirs.get(c, {}) for c in ours | theirs})
    catalogue.cache_clear()


def _check_word(place: str, word: str, known: Collection[str]) -> None:
    if word not in known:
        from lockkit.model.checks import nearest

        close = nearest(word, known)
        hint = f"did you mean {close!r}?" if close else f"there are {', '.join(sorted(known))}"
        raise ValueError(f"the catalogue {place!r} has {word!r}, which no refusal has; {hint}")


def _check(tag: str, code: str, entries: Mapping[str, Any]) -> None:
    """Raise ValueError if a text of this code cannot be filled in. Its values are those that the
    English texts name, and ``seconds``."""
    from string import Formatter

    english = "".join(_ours(DEFAULT)[code].values())
    fields = [field for _, field, _, _ in Formatter().parse(english) if field]
    values = {field: 1 if field in ("limit", "seconds") else "x" for field in fields}
    try:
        Catalogue(tag, entries).text(code, {"seconds": 1, **values})
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"the catalogue {tag!r}: a text of {code} is wrong: {error!r}") from error


@cache
def catalogue(language: str | None = None) -> Catalogue:
    """The catalogue for a language tag, or for the language of which it is a variant, or English.

    ``language``: such as ``zh-Hans-CN`` or ``pt_BR``; None: English.
    """
    tag = _tag(language or DEFAULT)
    while tag:
        if tag in _added:
            return _added[tag]
        if (ours := _OURS.get(tag)) is not None:
            return _added.get(ours) or Catalogue(ours, _ours(ours))
        tag = tag.rpartition("-")[0]
    return catalogue(DEFAULT)


@cache
def _ours(language: str) -> dict[str, Any]:
    return _parsed(resources.files(__name__).joinpath(f"{language}.toml").read_bytes())


def _parsed(toml: bytes) -> dict[str, Any]:
    import tomllib

    return tomllib.loads(toml.decode())


def _tag(language: str) -> str:
    return language.replace("_", "-").lower()
