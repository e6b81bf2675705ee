"""``wait_replicas=N``: a claim, and each extension, counts only once N replicas have confirmed it.

The server is asked together with the claim (WAIT). A fail-over then loses fewer claims, but may
still lose some: the replica that is promoted may be one that has confirmed nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lockkit.engine.effects import Step
from lockkit.model.checks import check_count, wrong
from lockkit.model.errors import LockError, OutcomeUnknown, StoreRefused
from lockkit.model.settings import AliasSettings
from lockkit.stores.redis.failures import forbids
from lockkit.stores.redis.protocol import Command, pack
from lockkit.stores.redis.scripts import call_all
from lockkit.stores.redis.settings import own_option

OPTION = "wait_replicas"


class Unconfirmed(OutcomeUnknown):
    """The scripts have run, and too few replicas have confirmed that."""


def divided(settings: AliasSettings) -> tuple[int, AliasSettings]:
    """The number of replicas, and the settings without that option. Raises ConfigurationError."""
    number, rest = own_option(settings, OPTION, 0, _number)
    where = f"{OPTION} of {settings.title}"
    if number is None:
        raise wrong(where, number, "a number of replicas")
    return check_count(where, number) or 0, rest


def _number(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdecimal() else text


def confirmed(
    commands: Sequence[Command],
    replicas: int,
    timeout: float,
    kind: type[list[bytes]] = list,
    counts: Callable[[Any], bool] = lambda _: True,
) -> Step[list[Any]]:
    """Run scripts, and have this number of replicas confirm them, in half a request's timeout.
    ``kind`` as for ``call_all``.

    Raises OutcomeUnknown if too few did and one of the replies counts, or if the user may not ask:
    the scripts have run all the same."""
    if not replicas:
        return (yield from call_all(commands, kind=kind))
    wait = pack(b"WAIT", b"%d" % replicas, b"%d" % (timeout * 500))
    try:
        replies = yield from call_all(commands, wait, kind)
        if isinstance(count := replies.pop(), LockError):
            raise count
    except StoreRefused as error:
        if forbids(error, "wait"):
            text = f"the user lacks +wait, which {OPTION} needs (NOPERM)"
            raise Unconfirmed(text) from error.__cause__
        raise
    if count < replicas and any(map(counts, replies)):
        raise Unconfirmed(f"{count} of {replicas} replicas have confirmed it ({OPTION})")
    return replies
