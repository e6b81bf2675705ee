"""The table of ``?mode=row``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockkit.engine.effects import Step
from lockkit.runtime.run import run
from lockkit.stores.sessions.dialects import OfRows
from lockkit.stores.sessions.session import Session
from lockkit.stores.sessions.store import SessionStore

if TYPE_CHECKING:
    from lockkit.stores.sessions.pool import Route


class RowStore(SessionStore):
    """A store that has a table."""

    def create_table(self) -> None:
        run(self._elsewhere(self._create), self.wire())

    def ddl(self) -> str:
        assert isinstance(self._sql, OfRows)
        return self._sql.create

    def _create(self, route: Route, session: Session) -> Step[bool]:
        assert isinstance(self._sql, OfRows)
        yield from self._say(session, route, self._sql.create)
        return True
