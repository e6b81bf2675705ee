"""Every error that lockkit raises, in one tree.

::

    LockError
    ├ ConfigurationError(ValueError)   a setting, a name or a call is wrong; nothing was locked
    │  ├ UnknownBackend                no store has this URL scheme or dotted path
    │  ├ UnsupportedCapability         this store cannot do what was asked
    │  ├ DriverMissing                 a package is not installed; the text names the extra
    │  ├ InvalidName                   not a lock name, or a template that cannot make one
    │  ├ KindMismatch                  the name is in use as another kind of lock
    │  ├ UpgradeRefused                a reader would wait for itself to become a writer
    │  ├ OpenTransaction               an open transaction would commit after the release
    │  ├ LayoutMismatch                the store holds another version of lockkit's layout
    │  └ MissingTable                  the database has no table for locks
    ├ AcquireTimeout(TimeoutError)     somebody else has the lock
    │  ├ LockHeld                      the same, and it did not wait
    │  └ TooManyWaiters                the queue, or this process's waiting room, is full
    │     └ TooManySessions            this process uses all the sessions that it may have
    ├ LeaseLost                        the lease is not held any more, and will not be again
    └ BackendError                     the store failed; __cause__ is the driver's error
       ├ BackendUnavailable            the request was not applied
       │  ├ StoreRefused               the store is up, but refuses this user or this database
       │  └ DamagedRecord              the record of the name cannot be read
       └ OutcomeUnknown                no reply came: the request may or may not have been applied

Every error has a ``name``, can be pickled, and contains no token, password or URL credentials.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockkit.model.types import Owner

UNNAMED = "the name"
"""Stands for the lock's name in the text of an error that is made where the name is not known."""

OTHER_KIND = "use another name, or the same kind of lock everywhere"
WRITE_FIRST = "ask for .write() first, and downgrade() its lease to read"
"""What to do about a KindMismatch, and about an UpgradeRefused."""


class LockError(Exception):
    """The base of every error that lockkit raises."""

    of_lease = False
    """Raised by ``release``, ``extend`` or ``downgrade``: what the lock was for may be done."""

    def __init__(self, message: str = "", *, name: str | None = None) -> None:
        super().__init__(message)
        self.name = name

    def about(self, name: str) -> None:
        """Set ``name``. If it was not known before, put it into the text in place of UNNAMED."""
        if self.name is None:
            self.args = (str(self).replace(UNNAMED, repr(name), 1),)
        self.name = name


class ConfigurationError(LockError, ValueError):
    """A setting, a name or a call is wrong. Nothing was locked."""


class UnknownBackend(ConfigurationError):
    """No store has this URL scheme or dotted path."""


class UnsupportedCapability(ConfigurationError):
    """This store cannot do what was asked."""


class DriverMissing(ConfigurationError, ImportError):
    """A driver cannot be imported. The message names the extra that installs it, and says why."""


class InvalidName(ConfigurationError):
    """The text is not a lock name, or the template cannot make one from its values."""


class KindMismatch(ConfigurationError):
    """The name is in use as another kind of lock."""


class OpenTransaction(ConfigurationError):
    """A lock was requested inside an open transaction, which would commit after the release. It is
    also raised if an asyncio lock is released before the COMMIT of an order that began under it."""


class UpgradeRefused(ConfigurationError):
    """A reader asked to write. Two such readers would wait for each other for ever.

    Release the read lease first, or take the write lease from the start and downgrade it.
    """


class LayoutMismatch(ConfigurationError):
    """The store has the layout of another release of lockkit. Do not mix these releases."""


class MissingTable(ConfigurationError):
    """The database has no table for locks. The message says how to make it."""


class AcquireTimeout(LockError, TimeoutError):
    """The lock was not granted in time. The attempt leaves nothing in the store.

    - ``waited``: the seconds for which it waited.
    - ``holder``: the owner that held the lock when the store last answered, or None if not known.
    - ``retry_after``: whole seconds after which to try again, estimated from recent hold times.
    - ``own``: true if the thread or task that asks holds the lock itself, so waiting is useless.
      Also true if another thread or task of the process, with the same name, holds it, and if the
      ``lock_view`` around the code that asks holds it, as a mutex or a reentrant lock.
    """

    def __init__(
        self,
        message: str = "",
        *,
        name: str | None = None,
        waited: float = 0.0,
        holder: Owner | None = None,
        retry_after: int = 1,
        own: bool = False,
    ) -> None:
        super().__init__(message, name=name)
        self.waited = waited
        self.holder = holder
        self.own = own
        self.retry_after = retry_after


class LockHeld(AcquireTimeout):
    """With ``timeout=0``: somebody has the lock, or is ahead in its queue.

    With any timeout: the ``lock_view`` around the code has it, so waiting would never end.
    """


class TooManyWaiters(AcquireTimeout):
    """MAX_QUEUE (per name, in the store) or MAX_WAITERS (per process) is reached."""


class TooManySessions(TooManyWaiters):
    """``max_sessions`` is reached: each lease and each waiter of this process has a session with
    the database server, and none became free in time. The lock itself may be free."""


class LeaseLost(LockError):
    """The lease is not held any more: it expired, or an operator released it. This is final.

    The message says why, as far as this process knows: who released it, for how long no
    renewal has succeeded and why, or that MAX_HOLD was reached.
    """


class BackendError(LockError):
    """The store failed. ``__cause__`` is the driver's own error."""


class BackendUnavailable(BackendError):
    """The store could not be reached, or refused the request. The request was not applied."""


class StoreRefused(BackendUnavailable):
    """The store is up but refuses: a wrong password, a missing permission, no such database.

    It will refuse the next request as well, until your settings or those of the server change.
    """


class DamagedRecord(BackendUnavailable):
    """The store answers, but its record of the name cannot be read, so the name may be held.

    Nothing was granted, extended or deleted. ``locks show NAME`` says what repairs it.
    """


class OutcomeUnknown(BackendError):
    """The request was sent, but no reply came: it may or may not have been applied."""


def by(holder: Owner | None) -> str:
    """`` by web-1:4121 POST /stock/42``, or nothing when the holder is unknown. Whoever writes to
    the store cannot forge a line of a log by that."""
    text = f" by {holder}" if holder else ""
    return text if text.isprintable() else ascii(text)[1:-1]
