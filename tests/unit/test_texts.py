"""The catalogues of texts: every one says everything, about the same values."""

from __future__ import annotations

import string
import tomllib
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path

import pytest

from lockkit import texts
from lockkit.model.errors import LockHeld
from lockkit.web.refusal import Refusal, refusal_of

CATALOGUES = sorted(
    entry.name for entry in resources.files(texts).iterdir() if entry.name.endswith(".toml")
)


def read(name: str) -> dict[str, dict[str, str]]:
    return tomllib.loads(resources.files(texts).joinpath(name).read_text(encoding="utf-8"))


def values_of(text: str) -> set[str | None]:
    return {field for _, field, _, _ in string.Formatter().parse(text)} - {None}


@pytest.mark.parametrize("name", CATALOGUES)
def test_each_catalogue_says_all_that_english_says(name: str) -> None:
    english, other = read("en.toml"), read(name)
    assert other.keys() == english.keys()
    for code, parts in english.items():
        assert other[code].keys() == parts.keys(), code
        for part, text in parts.items():
            assert values_of(other[code][part]) == values_of(text), (code, part)


def test_no_value_in_a_text_is_in_a_language() -> None:
    """They are numbers, and what the settings call things: nobody has translated anything else."""
    english = [text for parts in read("en.toml").values() for text in parts.values()]
    assert set().union(*map(values_of, english)) == {"seconds", "limit"}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("en-GB", "en"),
        ("zh_Hans_CN", "zh-hans"),
        ("zh-cn", "zh-hans"),
        ("fr", "en"),
        ("", "en"),
        (None, "en"),
    ],
)
def test_a_variant_is_said_in_its_language_and_an_unknown_one_in_english(
    asked: str | None, said: str
) -> None:
    assert texts.catalogue(asked).language == said


def test_busy_is_said_in_chinese() -> None:
    refusal = refusal_of(LockHeld("held", name="stock:1"))
    said = refusal.in_language("zh-hans")
    assert "请几秒钟后再试" in said.detail
    assert said.headers()["Content-Language"] == "zh-hans"
    assert said.problem()["detail"] == said.detail


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    monkeypatch.setattr(texts, "_added", {})

    def added(language: str, catalogue: str) -> None:
        path = tmp_path / f"{language}.toml"
        path.write_text(catalogue, encoding="utf-8")
        texts.add(language, path)

    yield added
    texts.catalogue.cache_clear()


TITLE = '[lock-busy]\ntitle = "Gerade besetzt"\n'
BUSY = Refusal(423, "lock-busy", 1)


def test_a_language_of_the_project_is_added(add: Callable[[str, str], None]) -> None:
    add("de", TITLE + 'detail = "Bitte gleich noch einmal."\n')
    said = BUSY.in_language("de-AT")
    assert (said.title, said.detail) == ("Gerade besetzt", "Bitte gleich noch einmal.")
    assert (said.language, said.headers()["Content-Language"]) == ("de", "de")


@pytest.mark.parametrize("refusal", [BUSY, Refusal(503, "lock-lease-lost", 1)])
def test_what_it_says_in_part_or_not_at_all_is_english_and_says_so(
    refusal: Refusal, add: Callable[[str, str], None]
) -> None:
    add("de", TITLE)
    said = refusal.in_language("de")
    assert (said.title, said.detail) == (refusal.title, refusal.detail)
    assert said.headers()["Content-Language"] == "en"
    assert '<html lang="en">' in said.page()


def test_a_page_with_a_link_is_in_one_language(add: Callable[[str, str], None]) -> None:
    done = Refusal(409, "order-completed", location="/orders/1")
    own = '[order-completed]\ntitle = "Bestellt"\ndetail = "Ist bestellt."\nadvice = ""\n'
    add("de", own)
    assert done.in_language("de").language == "en"
    assert done._replace(location=None).in_language("de").language == "de"
    add("de", own + '[page]\norder = "Ihre Bestellung"\n')
    assert '<html lang="de">' in (page := done.in_language("de").page())
    assert ">Ihre Bestellung</a>" in page


@pytest.mark.parametrize("language", ["en", "zh-hans"])
def test_a_word_of_ours_is_changed(language: str, add: Callable[[str, str], None]) -> None:
    before = BUSY.in_language(language)
    add(language, TITLE)
    said = BUSY.in_language(language)
    assert (said.language, said.title, said.detail) == (language, "Gerade besetzt", before.detail)


def test_a_word_of_ours_is_changed_for_all_its_variants(add: Callable[[str, str], None]) -> None:
    add("zh-hans", TITLE)
    assert {BUSY.in_language(tag).title for tag in ("zh", "zh_CN")} == {"Gerade besetzt"}


@pytest.mark.parametrize(
    ("own", "says"),
    [
        (TITLE.replace("busy", "bussy"), "has 'lock-bussy', .* did you mean 'lock-busy'"),
        (TITLE.replace("title", "titel"), "lock-busy' has 'titel', .* did you mean 'title'"),
        ("[page]\nordr = 'x'", "page' has 'ordr', .* did you mean 'order'"),
    ],
)
def test_a_misspelt_word_is_told_at_once(
    own: str, says: str, add: Callable[[str, str], None]
) -> None:
    with pytest.raises(ValueError, match=says):
        add("de", own)


def test_a_catalogue_that_cannot_be_read_is_told_at_once(tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("[lock-busy", encoding="utf-8")
    with pytest.raises(tomllib.TOMLDecodeError):
        texts.add("de", broken)
    assert texts.catalogue("de").language == "en"


@pytest.mark.parametrize(
    "said",
    [
        *('advice = "Attendez {secondes} s"', 'advice = "Attendez {"', 'detail = "{reason}"'),
        *('title = "{}"', "title = 5", 'detail = "{seconds:x y}"'),
    ],
)
def test_a_text_that_cannot_be_filled_in_is_told_at_once(
    said: str, add: Callable[[str, str], None]
) -> None:
    """And not when somebody is refused."""
    with pytest.raises(ValueError, match=r"'fr'.* order-running"):
        add("fr", f"[order-running]\n{said}\n")
    assert texts.catalogue("fr").language == "en"


def test_so_is_a_text_where_a_table_should_be(add: Callable[[str, str], None]) -> None:
    with pytest.raises(ValueError, match=r"'fr'.* lock-busy"):
        add("fr", 'lock-busy = "Occupé"\n')
    with pytest.raises(ValueError, match=r"'fr'.* language must be a table"):
        add("fr", 'language = "fr"\n')


def test_each_value_of_a_refusal_may_be_said(add: Callable[[str, str], None]) -> None:
    add("fr", '[order-too-large]\ntitle = "{limit:,}"\ndetail = "{seconds}"\nadvice = "{{}}"\n')
    refusal = Refusal(413, "order-too-large", 1, values={"limit": 1000}).in_language("fr")
    assert (refusal.title, refusal.detail, refusal.advice) == ("1,000", "1", "{}")
