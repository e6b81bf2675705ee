"""What refusals say to people: a page of plain HTML, and advice that does not order twice."""

from __future__ import annotations

import pytest

from lockkit.orders import Reject, replies

ALL = [
    replies.malformed("it is <b>long</b>"),
    replies.missing("form:order_id"),
    replies.nobody(),
    replies.different(),
    replies.form_of_another(),
    replies.form_expired(),
    replies.running(1),
    replies.crowded(2),
    replies.store_down(),
    replies.outcome_unknown(),
    replies.lease_lost(),
    replies.not_saved(),
    replies.orphaned(),
    replies.not_replayable("/orders/7?a=1&b=2"),
]


LANGUAGES = ["en", "zh-hans"]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("reject", ALL, ids=lambda reject: reject.code)
def test_each_says_what_to_do(reject: Reject, language: str) -> None:
    said = reject.in_language(language)
    assert (said.language, bool(said.advice)) == (language, True)
    assert said.advice.replace("'", "&#x27;") in said.page()
    assert f'<html lang="{language}">' in said.page()


def test_only_who_may_repeat_it_is_told_to() -> None:
    for reject in ALL:
        assert ("send the form again" in reject.advice) is (reject.retry_after is not None)


def test_what_comes_from_outside_is_escaped() -> None:
    assert "<b>" not in replies.malformed("it is <b>long</b>").page()
    assert 'href="/orders/7?a=1&amp;b=2"' in replies.not_replayable("/orders/7?a=1&b=2").page()


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
    refused = replies.not_replayable(url)
    assert refused.location is None
    assert "href" not in refused.page()
    assert "Location" not in dict(refused.headers())


@pytest.mark.parametrize(
    "url",
    ["/orders/7", "7", "?id=7", "//shop/7", "https://shop/7", "HTTP://shop/7", "/a?b=c:d", "/a:b"],
)
def test_links_of_the_web_stay(url: str) -> None:
    assert replies.not_replayable(url).location == url


def test_what_comes_from_outside_is_no_format() -> None:
    assert "{limit.__class__}" in replies.malformed("{limit.__class__}").detail
