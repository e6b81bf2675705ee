"""Records of orders beside their locks: the protocol of a store that can keep them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from lockkit.engine.effects import Step
from lockkit.model.types import ClaimReply, StoredRecord

if TYPE_CHECKING:
    from lockkit.model.types import Finding


class OnServer(ABC):
    """A store on a server that it can tell from all others, under whatever address."""

    @abstractmethod
    def server(self) -> Step[str | None]:
        """A text that no other server has. None: it is not known."""


class Records(Protocol):
    """Records beside locks. Each has the name of its lock, and lasts for ``ttl`` seconds.

    ``fence`` is the fencing token of the lock's lease. Every step but ``read`` and ``orphans`` is
    atomic with its check of the lock. Repeating a step after a lost reply does no harm.
    Errors as in ``Store``.
    """

    def read(self, name: str) -> Step[StoredRecord | None]: ...

    def claim(
        self, name: str, fence: int, payload: bytes, ttl: float, *, running: bool, replaces: bool
    ) -> Step[ClaimReply]:
        """Write if the lease is held. ``replaces``: also over a record that an older lease left."""

    def finish(self, name: str, fence: int, payload: bytes, ttl: float) -> Step[bool]:
        """Write the end over the record with this fence, if it is there. If it has expired, write
        only if the lease with this fence is still held. Returns whether it was written."""

    def drop(self, name: str, fence: int) -> Step[bool]:
        """Forget the running record with this fence."""

    def resolve(
        self, name: str, fence: int, payload: bytes, ttl: float, *, by: str = "", owner: str = ""
    ) -> Step[bool]:
        """An operator ends the orphan with this fence; an empty payload deletes it. ``by`` (who,
        and why) and ``owner`` go into the last words of the name."""

    def mark(self, name: str) -> Step[None]:
        """Have ``orphans`` list the record from now on, even if it has ended, because it cannot be
        read."""

    def repair(
        self, name: str, is_damaged: Callable[[StoredRecord], bool], by: str = ""
    ) -> Step[bool]:
        """Delete the record of this name if it is damaged, and nobody holds its lock. ``by`` (who,
        and why) goes into the last words of the name."""

    def orphans(
        self, name: str | None = None, cursor: Any = None
    ) -> Step[tuple[list[tuple[str, StoredRecord]], Any]]:
        """A page of records, and the cursor of the next page. It lists records that run while
        nobody holds their lock, and those that were marked. With a name: its record, even if it has
        ended."""

    def health(self) -> Step[list[Finding]]:
        """Dangers to records in the store's configuration. Errors as in ``Store.health``."""

    def capacity(self) -> Step[list[Finding]]:
        """Dangers of records to the locks on the same server."""
