"""The servers that lockkit can lock in."""

from __future__ import annotations

from typing import Final

from lockkit.stores.sql.mysql import MySQL
from lockkit.stores.sql.postgresql import PostgreSQL
from lockkit.stores.sql.vendor import Vendor

VENDORS: Final[dict[str, Vendor]] = {
    "postgresql": PostgreSQL(),
    "mysql": MySQL(),
    "mariadb": MySQL(),
}
"""By the names that SQLAlchemy and Django have for them."""


def vendor_of(name: str) -> Vendor:
    return VENDORS[name]
