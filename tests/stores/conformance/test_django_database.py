"""django://: the project's own database. What Django does without any setting of lockkit's."""

from __future__ import annotations

import os
from collections.abc import Iterator

import django
import pytest
from database_settings import complete, environment, sqlite
from django.db import connections

from lockkit.testing.conformance import StoreConformance
from lockkit.testing.store import Store
from lockkit_django.stores.database import DatabaseFile

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "django_project.settings")
django.setup()


class TestDjangoDatabase(StoreConformance):
    schemes = ("django",)
    tested = DatabaseFile
    cycles = 600  # of a store without messages

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
        database = sqlite(tmp_path_factory.mktemp("django") / "shop.sqlite3")
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(connections.settings, "default", complete(database))
            yield Store("django://default", setup="django:setup", environment=environment(database))
