"""The table of ``?mode=row``."""

from __future__ import annotations

from lockkit.engine.effects import Step
from lockkit.runtime.process import new_token
from lockkit.runtime.run import run
from lockkit.stores.sessions.dialects import OfRows
from lockkit.stores.sessions.session import Session
from lockkit.stores.sessions.store import SessionStore


class RowStore(SessionStore):
    """A store that has a table."""

    def create_table(self) -> None:
        run(self._elsewhere(("", new_token()), self._create), self.wire())

    def ddl(self) -> str:
        assert isinstance(self._sql, OfRows)
        return self._sql.create

    def _create(self, session: Session) -> Step[bool]:
        assert isinstance(self._sql, OfRows)
        yield from self._say(session, session.claim, self._sql.create)
        return True
