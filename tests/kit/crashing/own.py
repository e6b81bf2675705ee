"""Views that commit themselves: killed, or paused, around the block of ``commit_in``."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from crashing.customers import insist, send
from crashing.points import OWN_POINTS
from crashing.stories import Shop, Sleeper

__all__ = ["OwnTransactions"]

COMMITTED = {"between", "committed", "answering"}
"""Points after the COMMIT of the block."""


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
        done = point in COMMITTED
        assert shop.books.sales(order_id) == done
        answers = shop.insist(order_id, path) + shop.insist(order_id, path)
        if point == "between" and not responds:
            assert {answer.code for answer in answers} == {"order-completed"}
        else:
            assert {answer.status for answer in answers} == {201}
            assert [a.replayed for a in answers].count(False) == (not done)
            assert len({(answer.headers, answer.body) for answer in answers}) == 1
        assert shop.books.sales(order_id) == 1

    @pytest.mark.parametrize("point", ["before", "view"])
    def test_paused_around_its_own_commit_past_its_lease(
        self, shop: Shop, sleeper: Sleeper, point: str
    ) -> None:
        """Before its block it is overtaken; in it, the other waits until it is rolled back."""
        order_id, path = f"paused at {point}: own", "/orders/own"
        quick = shop.machines[0]
        with ThreadPoolExecutor(1) as pool:
            with sleeper.asleep(order_id, point, path) as first:
                second = pool.submit(insist, [quick.port], order_id, stop="tell@locked", path=path)
                quick.stopped("tell@locked")
                if point == "before":
                    assert second.result() != []
                    assert shop.books.sales(order_id) == 1
            late, answers = first.result(), [a for a in second.result() if a]
        assert late is not None
        assert (late.status, late.replayed) == ((201, True) if point == "before" else (503, False))
        shop.has_sold_once(order_id, answers + shop.insist(order_id, path))
