"""docs/plain.md: its Python runs, and its ACL line is enough."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from places import ROOT

import lockkit
from lockkit.model.errors import AcquireTimeout
from lockkit.testing.servers import RedisServer

PAGE = (ROOT / "docs" / "plain.md").read_text(encoding="utf-8")
URL = "redis://127.0.0.1:6379/0"


def test_every_block_runs(redis_url: str) -> None:
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE):
        exec(compile(block.replace(URL, redis_url), "docs/plain.md", "exec"), names)


@pytest.fixture
def with_acl() -> Iterator[str]:
    (line,) = re.findall(r"^user shop (.*)$", PAGE, re.MULTILINE)
    every_channel = "acl-pubsub-default allchannels"  # of each new user, as Redis 6.2 has it
    with RedisServer(
        every_channel, users={"shop": line.replace(">…", ">secret") + " +scan"}
    ) as server:
        yield f"{server.url_for('shop', 'secret')}?protocol=plain"


def test_the_user_of_the_page_may_do_all_of_it(with_acl: str) -> None:
    with lockkit.connect(with_acl) as locks:
        lease = locks.lock("stock:42").acquire()
        with pytest.raises(AcquireTimeout):
            locks.lock("stock:42").acquire(timeout=0.1)
        lease.extend(5)
        assert [info.name for info in locks.holders()] == ["stock:42"]
        assert locks.break_("stock:42", fence=lease.fencing_token)
        assert lease.release() is False
        assert locks.repair("stock:42") is False
        locks.perform(locks.store.check())
