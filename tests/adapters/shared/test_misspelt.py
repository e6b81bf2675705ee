"""A misspelt option of a decorator is said when the view is decorated, with the nearest one."""

from __future__ import annotations

import os
from typing import Any

import django
import pytest

import lockkit_django
import lockkit_flask
from lockkit.model.errors import ConfigurationError

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "django_project.settings")
django.setup()

from lockkit_django.orders import idempotent as idempotent_in_django  # noqa: E402

LOCK_VIEWS = (lockkit_django.lock_view, lockkit_flask.lock_view)
IDEMPOTENT = (idempotent_in_django, lockkit_flask.idempotent)


@pytest.mark.parametrize("lock_view", LOCK_VIEWS)
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"timout": 1}, "lock_view has no option 'timout': did you mean 'timeout'?"),
        ({"reentrant": True}, "lock_view has no option 'reentrant': say kind=\"reentrant\""),
        ({"on_busi": print}, "did you mean 'on_busy'?"),
        ({"on_busy": "busy.html"}, "on_busy of lock_view is 'busy.html'"),
    ],
)
def test_options_of_lock_view(lock_view: Any, options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        lock_view("a", **options)
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("lock_view", "takes", "wrong"),
    [
        (lockkit_django.lock_view, "request, error", lambda error: "busy"),
        (lockkit_flask.lock_view, "error", lambda request, error: "busy"),
    ],
)
def test_what_on_busy_takes(lock_view: Any, takes: str, wrong: Any) -> None:
    """The two frameworks differ, and only a busy lock would tell."""
    with pytest.raises(ConfigurationError, match=rf"must take \({takes}\)"):
        lock_view("a", on_busy=wrong)


@pytest.mark.parametrize("idempotent", IDEMPOTENT)
@pytest.mark.parametrize("misspelt", ["requird", "where"])
def test_options_of_idempotent(idempotent: Any, misspelt: str) -> None:
    with pytest.raises(ConfigurationError, match=f"@idempotent has no option '{misspelt}'"):
        idempotent(**{misspelt: True})


def test_an_option_that_only_django_has() -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'atomic'"):
        idempotent_in_django(atomik=False)
    with pytest.raises(ConfigurationError, match="it has order_id, required, using"):
        lockkit_flask.idempotent(atomic=False)


def test_a_lock_without_an_alias() -> None:
    """A first user takes the clients of all aliases for one client."""
    with pytest.raises(AttributeError, match=r"choose an alias, as in locks\['default'\]\.lock"):
        lockkit_django.locks.lock  # type: ignore[attr-defined]  # noqa: B018
