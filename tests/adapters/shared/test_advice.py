"""Refusals for people: a page of plain HTML, with advice that does not order twice."""

from __future__ import annotations

import pytest

from lockkit.orders import Refusal, refusals

ALL = [
    refusals.malformed("it is long"),
    refusals.missing("form:order_id"),
    refusals.NOBODY,
    refusals.DIFFERENT,
    refusals.FORM_OF_ANOTHER,
    refusals.FORM_EXPIRED,
    refusals.running(1),
    refusals.crowded(2),
    refusals.STORE_DOWN,
    refusals.outcome_unknown(),
    refusals.LEASE_LOST,
    refusals.NOT_SAVED,
    refusals.ORPHANED,
    refusals.not_replayable("/orders/7?a=1&b=2"),
]


LANGUAGES = ["en", "zh-hans"]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("refusal", ALL, ids=lambda refusal: refusal.code)
def test_each_says_what_to_do(refusal: Refusal, language: str) -> None:
    said = refusal.in_language(language)
    assert (said.language, bool(said.advice)) == (language, True)
    assert said.advice.replace("'", "&#x27;") in said.page()
    assert f'<html lang="{language}">' in said.page()


def test_only_who_may_repeat_it_is_told_to() -> None:
    for refusal in ALL:
        assert ("send the form again" in refusal.advice) is (refusal.retry_after is not None)


def test_what_comes_from_outside_is_escaped() -> None:
    assert "<b>" not in refusals.missing("form:<b>").page()
    assert 'href="/orders/7?a=1&amp;b=2"' in refusals.not_replayable("/orders/7?a=1&b=2").page()


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "JavaScript:alert(1)",
        " \tjava\nscript:alert(1)",
        "\x01javascript:alert(1)",
        "data:text/html,<script>",
        "vbscript:x",
        "blob:x",
        "mailto:a@b",
    ],
)
def test_a_link_runs_no_script(url: str) -> None:
    refused = refusals.not_replayable(url)
    assert refused.location is None
    assert "href" not in refused.page()
    assert "Location" not in dict(refused.headers())


@pytest.mark.parametrize(
    "url",
    ["/orders/7", "7", "?id=7", "//shop/7", "https://shop/7", "HTTP://shop/7", "/a?b=c:d", "/a:b"],
)
def test_links_of_the_web_stay(url: str) -> None:
    assert refusals.not_replayable(url).location == url


def test_what_comes_from_outside_is_no_format() -> None:
    assert "{limit.__class__}" in refusals.missing("{limit.__class__}").reason


def test_what_is_for_the_log_reaches_no_client() -> None:
    """Not even a template that shows all of a refusal."""
    refusal = refusals.running(1, "'order:1' is held by web-1:4121")
    given: list[str] = []

    def render(_: list[str], context: dict[str, object]) -> None:
        given.append(str(context))

    for accept in ("text/html", "*/*"):
        answer = refusal.answer(accept, render)
        assert "web-1" not in answer.text + str(answer.headers)
    assert len(given) == 1
    assert "web-1" not in given[0]
