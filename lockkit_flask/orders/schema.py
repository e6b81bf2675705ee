"""The table of the records of orders."""

from __future__ import annotations

import sqlalchemy as sa

from lockkit.model.errors import ConfigurationError
from lockkit.orders.rows import TABLE
from lockkit.stores.sql.vendors import VENDORS, vendor_of

EARLIER_TABLE = "lockkit_order_record"
"""The table of an earlier release, whose records this one cannot find: their keys differ."""


def order_table(metadata: sa.MetaData) -> sa.Table:
    """The table, within the app's metadata: ``create_all()`` makes it and Alembic sees it.

    The columns mean the same as in Django's table of the same name, so both may share one table.
    """
    if TABLE in metadata.tables:
        return metadata.tables[TABLE]
    return sa.Table(
        TABLE,
        metadata,
        sa.Column("key", sa.String(64), primary_key=True),
        sa.Column("order_id", sa.String(255), nullable=False),
        sa.Column("request", sa.String(255), nullable=False),
        sa.Column("fingerprint", sa.String(100), nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("expires", sa.BigInteger, nullable=False, index=True),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("headers", sa.Text, nullable=False),
        sa.Column("body", sa.LargeBinary(2**24 - 1), nullable=False),  # MySQL: MEDIUMBLOB
        mysql_engine="InnoDB",  # the server's default may have no transactions
        mariadb_engine="InnoDB",
    )


def refuse(engine: sa.Engine) -> None:
    """Refuse a driver whose errors lockkit cannot read, and an earlier release's table, whose
    orders would run again."""
    if engine.dialect.name in VENDORS:
        vendor_of(engine.dialect.name, engine.dialect.loaded_dbapi)
    if sa.inspect(engine).has_table(EARLIER_TABLE):
        raise ConfigurationError(
            f"the database has the table {EARLIER_TABLE!r} of an earlier release of lockkit, "
            f"whose orders this release would make again if their clients repeat them: take no "
            f"orders until the TTL of the last one is over, or accept that, and drop it"
        )
