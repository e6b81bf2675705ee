"""The kinds of locks a client makes, for the blocking and the asyncio API at once."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Generic, TypeVar

from lockkit.errors import UnsupportedCapability
from lockkit.lease import BaseClient, BaseLock, Terms
from lockkit.types import UNSET, Claim, Kind, Unset
from lockkit.values import check_permits

__all__ = ["Kinds"]

MUTEX = Claim()

L = TypeVar("L", bound=BaseLock)


class Kinds(BaseClient, Generic[L]):
    """A client of either API; ``L`` is the class of its locks."""

    def lock(
        self,
        name: str,
        *,
        ttl: float | Unset = UNSET,
        timeout: float | None | Unset = UNSET,
        label: str = "",
    ) -> L:
        """A lock on ``name``: no I/O yet.

        ttl: seconds a lease lives unrenewed. timeout: seconds ``acquire`` waits; 0: not at all;
        None: for ever. label: what people see beside the owner. Raises ConfigurationError.
        """
        return self._make(self._terms(MUTEX, name, ttl, timeout, label))

    def semaphore(
        self,
        name: str,
        permits: int,
        *,
        ttl: float | Unset = UNSET,
        timeout: float | None | Unset = UNSET,
        label: str = "",
        **options: Any,
    ) -> L:
        """A lock that up to ``permits`` may hold at once; each lease is one permit.

        Each permit expires by itself. Other arguments as of ``lock``. Guarantee: no more than
        ``permits`` hold it at one moment of the store's clock. Limit: that says nothing about what
        they write, so its leases cannot fence. Whoever asks with another number, or for another
        kind of lock, while the name is in use gets KindMismatch. Each step reads all who hold it.
        """
        claim = Claim(Kind.SEMAPHORE, check_permits(permits), shared=True)
        self._needs_sharing()
        return self._make(self._terms(claim, name, ttl, timeout, label), **options)

    @abstractmethod
    def _make(self, terms: Terms) -> L: ...

    def _needs_sharing(self) -> None:
        if not self._capabilities.shared:
            raise UnsupportedCapability(
                f"the store of the lock alias {self.settings.alias!r} has no semaphores"
            )
