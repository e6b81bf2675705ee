"""A savepoint in the transaction of an order, and the statements about one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

FIRST = "SAVEPOINT sa_savepoint_1"  # that of the view's session: SQLAlchemy numbers them
MARK = re.compile(r"(RELEASE |ROLLBACK TO |)SAVEPOINT (sa_savepoint_\d+)")


@dataclass
class Savepoint:
    """An open savepoint."""

    name: str
    session: Session
    since: int  #: how many changes were made before it
