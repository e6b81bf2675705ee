"""Views that commit themselves: killed at each point around the block of ``commit_in``."""

from __future__ import annotations

import pytest

from crashing.customers import send
from crashing.points import OWN_POINTS
from crashing.stories import Shop

__all__ = ["OwnTransactions"]

COMMITTED = {"between", "committed", "answering"}
"""Points after the COMMIT of the block."""

LATER = "committing"
"""The UPDATE of the record: in the block by ``respond_with``, else a step of its own after it."""


class OwnTransactions:
    """Beside Stories, in a shop that has such a view."""

    @pytest.mark.parametrize("responds", [False, True], ids=["plain", "respond-with"])
    @pytest.mark.parametrize("point", OWN_POINTS)
    def test_killed_around_its_own_commit(self, shop: Shop, point: str, responds: bool) -> None:
        order_id = f"killed at {point}: {responds}"
        path = "/orders/own" + ("?respond" if responds else "")
        dying, _ = shop.machines
        assert send(dying.port, order_id, stop=f"kill@{point}", path=path) is None
        dying.stopped(f"kill@{point}")
        done = point in COMMITTED or (point == LATER and not responds)
        assert shop.books.sales(order_id) == done
        answers = shop.insist(order_id, path) + shop.insist(order_id, path)
        if point == "between" and not responds:
            assert {answer.code for answer in answers} == {"order-completed"}
        else:
            assert {answer.status for answer in answers} == {201}
            assert [a.replayed for a in answers].count(False) == (not done)
            assert len({(answer.headers, answer.body) for answer in answers}) == 1
        assert shop.books.sales(order_id) == 1
