"""``manage.py check`` as a person runs it."""

from __future__ import annotations

import io

from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.test import override_settings

__all__ = ["manage_check", "shown_until_silenced"]


def manage_check(*options: str) -> str:
    """What it prints. Raises SystemCheckError if it finds errors."""
    output = io.StringIO()
    call_command("check", "--tag", "lockkit", *options, stdout=output, stderr=output)
    return output.getvalue()


def shown_until_silenced(identifier: str, *options: str) -> bool:
    """Whether it shows a message, and no more once SILENCED_SYSTEM_CHECKS has it."""
    with override_settings(SILENCED_SYSTEM_CHECKS=[identifier]):
        silenced = _shown(*options)
    return identifier in _shown(*options) and identifier not in silenced


def _shown(*options: str) -> str:
    try:
        return manage_check("--fail-level", "DEBUG", *options)
    except SystemCheckError as error:
        return str(error)
