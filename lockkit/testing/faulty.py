"""Wires that fail once: one exchange of a client is refused, or its reply is dropped."""

from __future__ import annotations

from enum import Enum
from typing import Any

from lockkit.engine.effects import Exchange, Gather
from lockkit.model.errors import BackendUnavailable, OutcomeUnknown
from lockkit.stores.contract import Store
from lockkit.stores.wires import AsyncWire, Wire


class Failing(Enum):
    """How an exchange fails."""

    REFUSED = "refused"  #: the store was not asked
    DROPPED = "dropped"  #: the store was asked, and its reply is lost


class FaultyExchange:
    """Makes one of a client's exchanges fail, within a ``with`` block of the fault."""

    def __init__(self) -> None:
        self.asked = 0  #: exchanges in the block
        self.happened = False
        self.number, self._failing, self._armed = -1, Failing.REFUSED, False  # -1: none fails

    def plan(self, number: int, failing: Failing) -> None:
        """Let the exchange with this number fail, counted from 0 within a ``with`` block."""
        self.asked, self.happened, self._armed = 0, False, False
        self.number, self._failing = number, failing

    def __enter__(self) -> None:
        self._armed = True

    def __exit__(self, *_: object) -> None:
        self._armed = False

    def before(self) -> bool:
        """Whether to drop the reply. Raises BackendUnavailable if this exchange is refused."""
        if not self._armed:
            return False
        number, self.asked = self.asked, self.asked + 1
        if number != self.number:
            return False
        self.happened = True
        if self._failing is Failing.REFUSED:
            raise BackendUnavailable("the test refuses this request")
        return True


class _Faulty:
    def __init__(self, wire: Any, fault: FaultyExchange) -> None:
        self._wire = wire
        self._fault = fault

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wire, name)

    def _spoilt(self, gather: Gather) -> Gather:
        """All lanes of a gather fail together."""
        try:
            is_dropped = self._fault.before()
        except BackendUnavailable as error:
            for lane, exchange in enumerate(gather.exchanges):
                if exchange is not None:
                    gather.react(lane, error)
            return gather._replace(exchanges=())
        if not is_dropped:
            return gather
        lost = OutcomeUnknown("the test drops this reply")
        return gather._replace(react=lambda lane, _: gather.react(lane, lost))


class _FaultyWire(_Faulty):
    def exchange(self, exchange: Exchange) -> Any:
        is_dropped = self._fault.before()
        reply = self._wire.exchange(exchange)
        return _dropped() if is_dropped else reply

    def gather(self, gather: Gather) -> None:
        self._wire.gather(self._spoilt(gather))


class _AsyncFaultyWire(_Faulty):
    async def exchange(self, exchange: Exchange) -> Any:
        is_dropped = self._fault.before()
        reply = await self._wire.exchange(exchange)
        return _dropped() if is_dropped else reply

    async def gather(self, gather: Gather) -> None:
        await self._wire.gather(self._spoilt(gather))


def _dropped() -> Any:
    raise OutcomeUnknown("the test drops this reply")


def give_faulty_wires(store: Store, fault: FaultyExchange) -> None:
    """Make the wires that this store makes from now on fail as the fault says."""
    wire, async_wire = store.wire, store.async_wire

    def faulty() -> Wire:
        return _FaultyWire(wire(), fault)

    def async_faulty(*, is_shared: bool = False) -> AsyncWire:
        return _AsyncFaultyWire(async_wire(is_shared=is_shared), fault)

    vars(store).update(wire=faulty, async_wire=async_faulty)
