"""The next cursor after ``use`` chooses the schema."""

from __future__ import annotations

from typing import Any

from django.db.backends.postgresql import base


class DatabaseWrapper(base.DatabaseWrapper):
    wanted = chosen = "public"

    def use(self, schema: str) -> None:
        self.wanted = schema

    def _cursor(self, name: str | None = None) -> Any:
        cursor = super()._cursor(name)
        if self.chosen != self.wanted:
            cursor.execute(f"SET search_path = {self.wanted}")
            self.chosen = self.wanted
        return cursor
