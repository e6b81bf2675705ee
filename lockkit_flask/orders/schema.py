"""The table of the records of orders, as SQLAlchemy knows it."""

from __future__ import annotations

import sqlalchemy as sa

from lockkit.orders.rows import TABLE

LARGEST_BODY = 2**24 - 1  # has MySQL choose MEDIUMBLOB; a plain BLOB ends at 64 KiB


def order_table(metadata: sa.MetaData) -> sa.Table:
    """The table, within the app's metadata: ``create_all()`` makes it and Alembic sees it.

    The columns mean the same as in Django's table of the same name: the two may be one.
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
        sa.Column("body", sa.LargeBinary(LARGEST_BODY), nullable=False),
    )
