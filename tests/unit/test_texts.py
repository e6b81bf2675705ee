"""The catalogues of texts: every one says everything, about the same values."""

from __future__ import annotations

import string
import tomllib
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
    assert refusal is not None
    said = refusal.in_language("zh-hans")
    assert "请几秒钟后再试" in said.detail
    assert said.headers()["Content-Language"] == "zh-hans"
    assert said.problem()["detail"] == said.detail


def test_a_language_of_the_project_is_added_and_english_fills_its_gaps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "_added", {})
    path = tmp_path / "de.toml"
    path.write_text('[lock-busy]\ntitle = "Gerade besetzt"\n', encoding="utf-8")
    texts.add("de", path)
    try:
        said = Refusal(423, "lock-busy", 1).in_language("de-AT")
        assert (said.language, said.title) == ("de", "Gerade besetzt")
        assert said.detail == Refusal(423, "lock-busy").detail
    finally:
        texts.catalogue.cache_clear()


def test_a_catalogue_that_cannot_be_read_is_told_at_once(tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("[lock-busy", encoding="utf-8")
    with pytest.raises(tomllib.TOMLDecodeError):
        texts.add("de", broken)
    assert texts.catalogue("de").language == "en"
