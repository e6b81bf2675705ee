"""A Flask app with one order view, on the database that it is given.

A line each: ``create``, ``order ID``, ``drop TABLE``.
"""

from __future__ import annotations

import sys

import sqlalchemy as sa
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from lockkit_flask import LockKit


def main(database: str, locks: str) -> None:
    made: list[str] = []
    app = Flask("shop")
    app.config.update(
        SQLALCHEMY_DATABASE_URI=f"sqlite:///{database}",
        LOCKKIT_URL=locks,
        LOCKKIT_USER=lambda: "alice",
        LOCKKIT_ORDERS={"PATHS": ["^/orders/"]},
    )
    db = SQLAlchemy(app)
    LockKit(app)

    @app.post("/orders/")
    def order() -> tuple[str, int]:
        made.append("order")
        return "made", 201

    for line in sys.stdin:
        action, *words = line.split()
        answer = "done"
        if action == "order":
            response = app.test_client().post("/orders/", headers={"Idempotency-Key": words[0]})
            answer = f"{response.status_code // 100} {len(made)}"
        else:
            with app.app_context():
                if action == "create":
                    db.create_all()
                else:
                    db.session.execute(sa.text(f"DROP TABLE {words[0]}"))
                    db.session.commit()
        print(answer, flush=True)


main(*sys.argv[1:3])
