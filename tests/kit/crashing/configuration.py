"""The settings of a machine from its environment, the same for both frameworks."""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

__all__ = ["CREATE", "VARIABLE", "Configuration", "configuration"]

VARIABLE = "CRASHING"
CREATE = "CRASHING_CREATE"
"""Set for the machine that makes the tables."""


class Configuration(NamedTuple):
    """``database`` and ``locks`` are URLs. ``ttl``, ``wait``: seconds."""

    database: str
    locks: str
    ttl: float = 30.0
    wait: float = 5.0
    orders: dict[str, Any] = {}  # noqa: RUF012  a default, replaced and never changed
    guard: str = "lockkit"  #: or a wrong one of ``crashing.wrong``

    def environment(self) -> dict[str, str]:
        return {VARIABLE: json.dumps(self._asdict())}


def configuration() -> Configuration:
    return Configuration(**json.loads(os.environ[VARIABLE]))
