"""``wait_replicas=N``: a claim, and each extension, counts only once N replicas have confirmed it.

The server is asked in the same breath (WAIT). That narrows what a fail-over loses, and does not
exclude a loss: a replica that has confirmed nothing may be the one that is promoted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode

from lockkit.engine.effects import Step
from lockkit.model.checks import check_count, wrong
from lockkit.model.errors import OutcomeUnknown
from lockkit.model.settings import AliasSettings
from lockkit.stores.redis.protocol import Command, pack
from lockkit.stores.redis.scripts import call_all

OPTION = "wait_replicas"


def divided(settings: AliasSettings) -> tuple[int, AliasSettings]:
    """How many replicas, from OPTIONS or the URL, and the settings without that. Raises
    ConfigurationError."""
    location, _, query = settings.location.partition("?")
    said = parse_qsl(query, keep_blank_values=True)
    in_url = [value for key, value in said if key == OPTION]
    options = dict(settings.options)
    number: object = options.pop(OPTION, 0)
    where = f"{OPTION} of the lock alias {settings.alias!r}"
    if in_url:
        if number or not (in_url[-1].isascii() and in_url[-1].isdecimal()):
            raise wrong(where, in_url[-1], "a number, said once")
        number = int(in_url[-1])
        rest = urlencode([(key, value) for key, value in said if key != OPTION])
        location = f"{location}?{rest}" if rest else location
    else:
        location = settings.location
    if number is None:
        raise wrong(where, number, "a number of replicas")
    return check_count(where, number) or 0, settings._replace(location=location, options=options)


def confirmed(commands: Sequence[Command], replicas: int, timeout: float) -> Step[list[Any]]:
    """Run scripts, and have so many replicas confirm them, within half the time-out of a request.

    Raises OutcomeUnknown: if too few did, the scripts have run all the same."""
    if not replicas:
        return (yield from call_all(commands))
    replies = yield from call_all(
        commands, pack(b"WAIT", b"%d" % replicas, b"%d" % (timeout * 500))
    )
    if (count := replies.pop()) < replicas:
        raise OutcomeUnknown(f"{count} of {replicas} replicas have confirmed it ({OPTION})")
    return replies
