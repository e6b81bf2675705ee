"""Records beside locks: what a store that can keep orders does for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from lockkit.engine.effects import Step
from lockkit.model.types import ClaimReply, StoredRecord

if TYPE_CHECKING:
    from lockkit.model.types import Finding


class Records(Protocol):
    """Records beside locks, each under the name of its lock, and for ``ttl`` seconds.

    ``fence`` is the fencing token of the lock's lease. Every step but ``read`` and ``orphans`` is
    atomic with what it asks of the lock, and repeating it after a lost reply does no harm.
    Errors as of ``Store``.
    """

    def read(self, name: str) -> Step[StoredRecord | None]: ...

    def claim(
        self, name: str, fence: int, payload: bytes, ttl: float, *, running: bool, replaces: bool
    ) -> Step[ClaimReply]:
        """Write, while the lease is held. ``replaces``: over one left running by an older one."""

    def finish(self, name: str, fence: int, payload: bytes, ttl: float) -> Step[bool]:
        """Write the end over the record with this fence, if it is still there."""

    def drop(self, name: str, fence: int) -> Step[bool]:
        """Forget the running record with this fence."""

    def resolve(
        self, name: str, fence: int, payload: bytes, ttl: float, *, by: str = "", owner: str = ""
    ) -> Step[bool]:
        """An operator's end for the orphan with this fence; no payload: forget it. ``by``: who and
        why, for the last words of the name, with the owner."""

    def mark(self, name: str) -> Step[None]:
        """Have the record listed from now on: it has ended, and cannot be read."""

    def repair(self, name: str, is_damaged: Callable[[StoredRecord], bool]) -> Step[bool]:
        """Delete the record of this name if it is damaged, and nobody holds its lock."""

    def orphans(
        self, name: str | None = None, cursor: Any = None
    ) -> Step[tuple[list[tuple[str, StoredRecord]], Any]]:
        """A page, and where the next one begins: what is running while nobody holds its lock, and
        what was marked; or what has this name, also if it has ended."""

    def health(self) -> Step[list[Finding]]:
        """Dangers of the store's configuration to records. Errors as of ``Store.health``."""

    def capacity(self) -> Step[list[Finding]]:
        """Dangers of records to other locks on the same server."""

    def server(self) -> Step[str | None]:
        """What tells the server from any other; None: it is not known."""
