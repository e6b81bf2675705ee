"""What the developer reads if a view cannot work in the transaction of its order."""

from __future__ import annotations

from lockkit.model.log import log
from lockkit.orders.gate import OrderStopped
from lockkit.orders.refusals import NOT_SAVED

NO_ENGINE = (
    "db.engines has a connection instead of an engine, and an order commits a transaction of its "
    "own: leave the engine there in tests of orders, and delete what they have saved"
)
AUTOCOMMIT = (
    "orders need a database that rolls back: its connections have autocommit. Remove that, or "
    "isolation_level AUTOCOMMIT, from SQLALCHEMY_ENGINE_OPTIONS"
)
CANNOT_JOIN = (
    "db.session cannot join the transaction of an order: the session that has replaced it needs a "
    "sessionmaker"
)
THREADS = (
    "two threads work in the transaction of an order at once: end the session of one, by commit() "
    "or rollback(), before another one works. A thread is in the order if it has a copy of the "
    "view's context, as asyncio.to_thread() gives it"
)
SUCCESS_OF_A_FAILURE = (
    "a view raised after it had committed, so its order was rolled back, but an error handler "
    "answers with success. Return a response instead of raising"
)
CHANGES = (
    "the view of an order answers with success, but has changes in db.session that are not "
    "committed. Commit them before the response leaves; nothing was saved"
)
UNCOMMITTED = (
    "the view of an order has ended, but has changes that are not committed, in the session of "
    "another app context. Commit them before the response leaves; nothing was saved"
)
UNDONE = (
    "in the view of an order, a rollback of one session has undone what another one, as of an app "
    "context, had changed since: both are in one transaction. Commit the changes of the view "
    "before it enters the app context; nothing was saved"
)
OTHER_OPTIONS = (
    "in the view of an order, db.session has an engine with execution options of its own, as its "
    "get_bind() may make one for each tenant. What it saves would not be part of the order: set "
    "the options in SQLALCHEMY_ENGINE_OPTIONS, or keep this view out of PATHS; nothing was saved"
)
UNHEARD = "orders do not hear what your listener of do_execute executes: use before_cursor_execute"
STOPPED = (
    "an order was given up: its transaction has ended before it, as by a deadlock, a COMMIT in "
    "SQL, or commit() or rollback() of the connection; what such a COMMIT has saved stays"
)


def stopped() -> OrderStopped:
    log.warning(STOPPED)
    return OrderStopped(NOT_SAVED)
