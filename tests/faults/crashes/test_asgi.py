"""Real ASGI servers whose client goes away while the view runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from crashing.configuration import Configuration
from crashing.customers import post
from crashing.machines import DJANGO, FLASK
from crashing.stories import Shop, open_shop

pytestmark = pytest.mark.timeout(360)  # seconds; most of a test is waiting


class TestDjango:
    @pytest.fixture(scope="class")
    @classmethod
    def shop(cls, on_postgres: Configuration, directory: Path) -> Iterator[Shop]:
        with open_shop(DJANGO, on_postgres, directory, server="uvicorn") as shop:
            yield shop

    @pytest.mark.parametrize("path", ["/orders/", "/orders/async"])
    def test_the_request_is_cancelled(self, shop: Shop, path: str) -> None:
        """And is an order once, after whatever the thread that could not be cancelled does."""
        order_id = f"the client of {path} goes away"
        machine, _ = shop.machines
        connection = post(machine.port, order_id, stop="wait@view", path=path)
        machine.stopped("wait@view")
        connection.close()
        machine.stopped("tell@gone")
        shop.open_gate()
        shop.has_sold_once(order_id, shop.insist(order_id, path))


class TestFlask:
    @pytest.fixture(scope="class")
    @classmethod
    def shop(cls, on_postgres: Configuration, directory: Path) -> Iterator[Shop]:
        with open_shop(FLASK, on_postgres, directory, server="uvicorn") as shop:
            yield shop

    def test_the_view_runs_to_its_end(self, shop: Shop) -> None:
        """A WSGI application behind ASGI is not told that its client is gone."""
        order_id = "the client goes away"
        machine, _ = shop.machines
        connection = post(machine.port, order_id, stop="wait@view")
        machine.stopped("wait@view")
        connection.close()
        shop.open_gate()
        answers = shop.insist(order_id)
        assert {answer.replayed for answer in answers} == {True}
        shop.has_sold_once(order_id, answers)
