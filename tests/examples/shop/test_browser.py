"""The shop's page in a real browser, on two machines of one framework."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from lockkit.testing.servers import MissingServer

pytestmark = pytest.mark.timeout(300)

PATIENCE_MS = 90_000
CLICKS = 10
NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        raise MissingServer("Chromium", "apt-get install --yes chromium")
    options = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(
            executable_path=program, args=options, timeout=PATIENCE_MS
        )
        yield found
        found.close()


class Books(NamedTuple):
    orders: int
    stock: int

    def minus(self, before: Books) -> tuple[int, int]:
        """New orders, and units that are gone."""
        return self.orders - before.orders, before.stock - self.stock


class Shop:
    """Two machines of one framework, and their database."""

    def __init__(self, output: Any, database: Path) -> None:
        self.urls: list[str] = []
        for line in output:
            self.urls += re.findall(r"http://127.0.0.1:\d+", line)
            if line.startswith("Open"):
                break
        self.database = database

    def books(self, sku: str = "mug") -> Books:
        with closing(sqlite3.connect(self.database, timeout=60)) as database:
            orders = "SELECT count(*) FROM shop_order WHERE sku = ?"
            (count,) = database.execute(orders, (sku,)).fetchone()
            stock = "SELECT stock FROM shop_product WHERE sku = ?"
            (left,) = database.execute(stock, (sku,)).fetchone()
        return Books(count, left)


@pytest.fixture(scope="module", params=["django", "flask"])
def shop(
    request: pytest.FixtureRequest,
    start_for_all: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Shop:
    database = tmp_path_factory.mktemp("shop") / "shop.sqlite3"
    process = start_for_all(
        "serve", "--ports", "0,0", "--machines", f"{request.param},{request.param}",
        SHOP_DATABASE_URL=f"sqlite:///{database}",
    )  # fmt: skip
    return Shop(process.stdout, database)


@pytest.fixture
def page(browser: Browser, shop: Shop) -> Iterator[Page]:
    """A new visitor, at the first machine."""
    with browser.new_context() as context:
        context.set_default_timeout(PATIENCE_MS)
        expect.set_options(timeout=PATIENCE_MS)
        visitor = context.new_page()
        visitor.goto(shop.urls[0])
        yield visitor


def buy(page: Page, machine: str = "a") -> None:
    mugs(page).get_by_role("button", name=f"Buy at {machine}").click()


def mugs(page: Page) -> Any:
    return page.locator("form.buy").filter(has=page.locator('input[value="mug"]'))


def become(page: Page, user: str) -> None:
    page.locator("#who").get_by_role("button", name=user, exact=True).click()
    expect(page.locator("#who b")).to_have_text(user)


def answers(page: Page, count: int) -> list[str]:
    """What the page says has happened, when so many answers have come."""
    shown = page.locator("#answers li")
    expect(shown).to_have_count(count)
    return shown.all_inner_texts()


@pytest.mark.parametrize("user", ["alice", None])
def test_ten_clicks_across_both_machines_are_one_order(
    shop: Shop, page: Page, user: str | None
) -> None:
    if user is not None:
        become(page, user)
    before = shop.books()
    for click in range(CLICKS):
        buy(page, "ab"[click % 2])
    told = answers(page, CLICKS)
    assert sum("(replayed)" in each for each in told) == CLICKS - 1
    assert all(" 201 " in each for each in told)
    expect(page.locator("#summary")).to_have_text("10 answers: 1 new, 9 replayed, 0 not taken")
    assert len({re.findall(r"\{.*\}", each)[0] for each in told}) == 1
    assert len({each.split(": ")[0] for each in told}) == 2  # both machines have answered
    assert shop.books().minus(before) == (1, 1)
    expect(page.locator('.stock[data-sku="mug"]')).to_have_text(str(before.stock - 1))


def test_another_quantity_with_the_same_order_id_is_refused(shop: Shop, page: Page) -> None:
    before = shop.books()
    buy(page)
    answers(page, 1)
    mugs(page).get_by_label("quantity").fill("2")
    buy(page, "b")
    assert " 422 " in answers(page, 2)[1]
    assert shop.books().minus(before) == (1, 1)


def test_another_user_with_the_same_order_id_has_an_order_of_his_own(
    shop: Shop, page: Page
) -> None:
    become(page, "alice")
    page.reload()  # a form that was made for her
    before = shop.books()
    field = mugs(page).locator('[name="order_id"]')
    value = field.input_value()
    buy(page)
    answers(page, 1)
    become(page, "bob")
    assert field.input_value() == value
    buy(page, "b")
    told = answers(page, 2)[1]
    assert told.startswith("bob") and " 201 " in told and "(replayed)" not in told
    assert shop.books().minus(before) == (2, 2)
    become(page, "alice")
    buy(page)
    assert "(replayed)" in answers(page, 3)[2]
    assert shop.books().minus(before) == (2, 2)


def test_a_guest_who_logs_in_between_two_clicks_has_one_order(shop: Shop, page: Page) -> None:
    before = shop.books()
    buy(page)
    answers(page, 1)
    become(page, "carol")
    buy(page, "b")
    told = answers(page, 2)[1]
    assert told.startswith("carol") and " 201 " in told and "(replayed)" in told
    become(page, "a guest")  # the next one at this computer
    buy(page)
    assert " 403 " in answers(page, 3)[2]
    assert shop.books().minus(before) == (1, 1)


def test_each_load_of_the_page_is_another_order(shop: Shop, page: Page) -> None:
    before = shop.books()
    for _ in range(2):
        buy(page)
        assert "(replayed)" not in answers(page, 1)[0]
        page.reload()
    assert shop.books().minus(before) == (2, 2)


def test_without_javascript_a_reload_makes_no_second_order(browser: Browser, shop: Shop) -> None:
    with browser.new_context(java_script_enabled=False) as context:
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        page.goto(shop.urls[0])
        before = shop.books()
        buy(page)
        page.get_by_text("Thank you").wait_for()
        order = page.locator("code").inner_text()
        page.reload()
        assert page.locator("code").inner_text() == order
        assert shop.books().minus(before) == (1, 1)
