"""kazoo's errors as lockkit's: some requests were certainly not applied, others may have been."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kazoo import exceptions as driver

from lockkit.model.errors import BackendError, BackendUnavailable, OutcomeUnknown, StoreRefused
from lockkit.model.log import log
from lockkit.stores.servers import tls_remedy


class SessionEnded(OutcomeUnknown):
    """The session is over. All nodes that it had made ended with it."""


UNSENT_OR_UNHEARD = (driver.ConnectionLoss, driver.OperationTimeoutError, driver.SessionMovedError)
UNNAMED = driver.APIError
"""Stands for the errors that kazoo does not know. No server replies with it."""

REFUSALS = {
    driver.NoAuthError: "its ACL does not let this user with this password do this",
    driver.AuthFailedError: "it refuses the user or the password",
    driver.InvalidACLError: "it refuses the ACL: 'creator' needs a username",
    driver.NotReadOnlyCallError: "the server has no majority, and only answers reads",
    driver.QuotaExceededError: "the quota of its path is exceeded",
    UNNAMED: "it replied with an error that kazoo does not know; the log has its number",
}
PASSING = {driver.NotReadOnlyCallError, UNNAMED}
"""Refusals that may pass by themselves. UNNAMED may be that of a server that throttles."""


def reading(read: Callable[..., Any], header: Any, *reply: Any) -> Any:
    """Replaces kazoo's step ``read``, which ends the session if it does not know the number of an
    error, although that is the error of one request only."""
    if header.err not in driver.EXCEPTIONS:  # which has 0, for no error
        log.warning("ZooKeeper replied with the error %s, which kazoo does not know", header.err)
        header = header._replace(err=UNNAMED.code)
    return read(header, *reply)


def lost(error: BaseException | None) -> BackendError | None:
    """The error of a whole exchange, if it got no reply; None if the server has replied."""
    if isinstance(error, driver.SessionExpiredError):  # raised for a closed client, too
        return SessionEnded("the session in ZooKeeper is over")
    if isinstance(error, UNSENT_OR_UNHEARD):
        return OutcomeUnknown("the connection to ZooKeeper broke before its reply")
    if error is None or isinstance(error, driver.ZookeeperError):
        return None
    return OutcomeUnknown(f"no readable reply came from ZooKeeper ({type(error).__name__})")


def refused(error: Exception) -> BackendError:
    """The error to raise if the server has replied with an error."""
    text = REFUSALS.get(type(error), f"it replied with an error ({type(error).__name__})")
    kind = BackendUnavailable if type(error) in PASSING else StoreRefused
    found = kind(f"ZooKeeper refuses: {text}")
    found.__cause__ = error
    return found


def unreachable(reason: BaseException | None) -> BackendUnavailable:
    """The error to raise if no session could be made in time."""
    silence = "no answer in time" + ", or none of its hosts has an address" * (reason is None)
    no_thread = str(reason) if isinstance(reason, RuntimeError) else ""
    why = getattr(reason, "strerror", None) or no_thread or silence
    found = BackendUnavailable(f"ZooKeeper cannot be reached: {why}{tls_remedy(why)}")
    found.__cause__ = reason or driver.ConnectionLoss()
    return found


def cannot_begin(reason: Exception) -> BackendUnavailable:
    return BackendUnavailable(f"no session in ZooKeeper can be begun: {reason}")


def told(answer: Any, *expected: type[Exception]) -> Any:
    """The reply; an error of the server is raised, unless it is expected."""
    if isinstance(answer, Exception) and not isinstance(answer, expected):
        raise refused(answer)
    return answer


def reason(answers: list[Any]) -> Exception | None:
    """The error that made a transaction fail; None if it did not. Its other requests were only
    rolled back."""
    failed = [answer for answer in answers if isinstance(answer, Exception)]
    passive = driver.RolledBackError, driver.RuntimeInconsistency
    return next((error for error in failed if not isinstance(error, passive)), None)
