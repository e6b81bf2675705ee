"""Every error lockkit raises, in one tree.

::

    LockError
    ├ ConfigurationError(ValueError)   a setting, a name or a call is wrong; nothing was sent
    │  ├ UnknownBackend                no backend is registered for this scheme or path
    │  ├ UnsupportedCapability         this backend cannot keep the promise that was asked for
    │  ├ DriverMissing                 a package is not installed; names the extra
    │  ├ InvalidName                   not a lock name, or a template that cannot make one
    │  ├ KindMismatch                  the name is in use as another kind of lock
    │  ├ UpgradeRefused                a reader would wait for itself to become a writer
    │  ├ OpenTransaction               inside a transaction, which would commit after the release
    │  └ LayoutMismatch                the store holds another version of lockkit's layout
    ├ AcquireTimeout(TimeoutError)     somebody else has it
    │  ├ LockHeld                      timeout=0 and somebody has it
    │  └ TooManyWaiters                the queue, or this process's waiting room, is full
    ├ LeaseLost                        not ours any more, finally
    └ BackendError                     __cause__ is the driver's error
       ├ BackendUnavailable            not applied
       │  ├ StoreRefused               it is up, and refuses this user or this database
       │  └ DamagedRecord              what is kept of the name cannot be read
       └ OutcomeUnknown                sent, no reply: may or may not have been applied

All carry ``name``, pickle, and contain no token, password or URL credentials.
"""

from __future__ import annotations

from lockkit.model.types import Owner

UNNAMED = "the name"
"""What a store calls the name in the text of an error, where it cannot know which one it is."""


class LockError(Exception):
    """The base of every error lockkit raises."""

    def __init__(self, message: str = "", *, name: str | None = None) -> None:
        super().__init__(message)
        self.name = name

    def about(self, name: str) -> None:
        """Set ``name``, and put it into a text in which the store could only say UNNAMED."""
        if self.name is None:
            self.args = (str(self).replace(UNNAMED, repr(name), 1),)
        self.name = name


class ConfigurationError(LockError, ValueError):
    """A setting, a name or a call is wrong. Nothing was sent to the store."""


class UnknownBackend(ConfigurationError):
    """No backend is registered for this URL scheme or dotted path."""


class UnsupportedCapability(ConfigurationError):
    """This backend cannot keep the promise that was asked for."""


class DriverMissing(ConfigurationError, ImportError):
    """A driver package is not installed. The message names the extra that brings it."""


class InvalidName(ConfigurationError):
    """Not a lock name, or a template that cannot make one from what it was given."""


class KindMismatch(ConfigurationError):
    """The name is in use as another kind of lock."""


class OpenTransaction(ConfigurationError):
    """A lock was asked for inside an open transaction, which would commit after the release."""


class UpgradeRefused(ConfigurationError):
    """A reader asked to write: two that did so would wait for each other for ever.

    Release the read lease first, or take the write lease from the start and downgrade it.
    """


class LayoutMismatch(ConfigurationError):
    """The store holds another version of lockkit's layout: do not mix these releases."""


class AcquireTimeout(LockError, TimeoutError):
    """The lock was not granted in time. Nothing of the attempt is left in the store.

    ``waited`` is in seconds; ``holder`` is the owner seen last, if any was;
    ``retry_after`` estimates, in whole seconds and from recent hold times, when to try again;
    ``own``: the thread or task that asks holds it itself, so waiting is in vain.
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
    """``timeout=0`` and somebody has the lock, or is ahead in its queue."""


class TooManyWaiters(AcquireTimeout):
    """MAX_QUEUE (per name, in the store) or MAX_WAITERS (per process) is reached."""


class LeaseLost(LockError):
    """The lease is not ours any more: it expired, or an operator broke it. This is final.

    The message says which, as far as this process knows: who broke it, for how long the store has
    been unreachable, or that MAX_HOLD was reached.
    """


class BackendError(LockError):
    """The store did not do its part. ``__cause__`` is the driver's own error."""


class BackendUnavailable(BackendError):
    """The store could not be reached, or refused. The request was not applied."""


class StoreRefused(BackendUnavailable):
    """The store is up and refuses: a wrong password, a missing permission, no such database.

    It will refuse the next request as well: the settings, or the server's, must change.
    """


class DamagedRecord(BackendUnavailable):
    """The store answers, and what it keeps of the name cannot be read, so it may be held.

    Nothing was granted, extended or deleted. ``locks release NAME --damaged`` deletes the record.
    """


class OutcomeUnknown(BackendError):
    """The request was sent and no reply came: it may or may not have been applied."""


def by(holder: Owner | None) -> str:
    """`` by web-1:4121 POST /stock/42``, or nothing when the holder is unknown."""
    return f" by {holder}" if holder else ""
