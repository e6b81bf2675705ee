"""docs/orders.md: its Python runs, and it names every setting."""

from __future__ import annotations

import re

from places import ROOT

from lockkit.orders import settings

TEXT = (ROOT / "docs" / "orders.md").read_text()


def test_the_code_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "docs/orders.md", "exec"), {})


def test_every_setting_is_there() -> None:
    documented = set(re.findall(r"^\| `([A-Z_]+)` \|", TEXT, re.MULTILINE))
    assert documented - {settings.SOURCE} == set(settings._CHECKS)
