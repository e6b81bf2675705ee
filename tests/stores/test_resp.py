"""Replies of a Redis server are read however they come, and each part of them once."""

import asyncio
import sys
from collections.abc import Iterable
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from redis.exceptions import NoScriptError, ResponseError

from lockkit.stores.redis.line import Line
from lockkit.stores.redis.resp import ALONE, Replies

MIXED = (
    b"*3\r\n:1\r\n*2\r\n$3\r\na\r\n\r\n*0\r\n$-1\r\n+OK\r\n*-1\r\n-NOSCRIPT no\r\n_\r\n"
    b"-ERR bad\r\n$0\r\n\r\n"
)


def fed(pieces: Iterable[bytes]) -> list[Any]:
    replies = Replies()
    return [reply for piece in pieces for reply in replies.feed(piece)]


@pytest.mark.parametrize("size", [1, 2, 3, 7, len(MIXED)])
def test_any_pieces_give_the_same_replies(size: int) -> None:
    found = fed(MIXED[at : at + size] for at in range(0, len(MIXED), size))
    assert found[:3] == [[1, [b"a\r\n", []], None], b"OK", None]
    assert isinstance(found[3], NoScriptError)
    assert found[4] is None
    assert isinstance(found[5], ResponseError)
    assert str(found[5]) == "bad"
    assert found[6:] == [b""]


def test_a_reply_waits_for_its_end() -> None:
    replies = Replies()
    assert replies.feed(b"*2\r\n$5\r\nhel") == []
    assert replies.feed(b"lo\r\n") == []
    assert replies.feed(b":5\r\n+next") == [[b"hello", 5]]
    assert replies.feed(b"\r\n") == [b"next"]


@pytest.mark.parametrize("first", range(1, 5))
def test_a_number_may_come_in_two_pieces(first: int) -> None:
    """A number that is whole is read in a way of its own."""
    replies, text = Replies(), b":42\r\n"
    assert replies.feed(text) == [42]
    assert replies.feed(text[:first]) == []
    assert replies.feed(text[first:]) == [42]


def test_what_a_pool_may_say_in_resp_3() -> None:
    text = b"%1\r\n$4\r\nsave\r\n$0\r\n\r\n=7\r\ntxt:abc\r\n_\r\n"
    assert fed([text]) == fed(text[at : at + 1] for at in range(len(text)))
    assert fed([text]) == [[b"save", b""], b"abc", None]


def test_what_a_server_pushes_is_no_reply() -> None:
    text = b":1\r\n>2\r\n+MOVING\r\n*1\r\n:5\r\n:2\r\n>1\r\n*0\r\n*1\r\n>1\r\n+a\r\n"
    assert fed([text]) == fed(text[at : at + 1] for at in range(len(text)))
    assert fed([text]) == [1, 2, [[b"a"]]]


def test_a_long_reply_in_many_pieces_takes_hardly_more_than_in_one() -> None:
    """It was read from its beginning for each piece."""
    text = b"*1000\r\n" + b"$4\r\nname\r\n" * 1000
    whole = _calls([text])
    assert _calls([text[at : at + 50] for at in range(0, len(text), 50)]) < 2 * whole


@pytest.mark.parametrize("text", [b"hello\r\n", b":x\r\n", b"*x\r\n", b"$1x\r\n"])
def test_what_is_no_reply_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Replies().feed(text)


def _calls(pieces: list[bytes]) -> int:
    number = 0

    def count(_: FrameType, event: str, __: object) -> None:
        nonlocal number
        number += event == "call"

    sys.setprofile(count)
    try:
        fed(pieces)
    finally:
        sys.setprofile(None)
    return number


class Transport:
    """Nobody is at its other end."""

    def __init__(self) -> None:
        self.is_over = False

    def set_protocol(self, _: object) -> None: ...

    def get_extra_info(self, _: str) -> SimpleNamespace:
        return SimpleNamespace(fileno=lambda: 0)

    def write(self, _: bytes) -> None: ...

    def is_closing(self) -> bool:
        return self.is_over

    def abort(self) -> None:
        self.is_over = True


async def test_a_server_that_goes_on_answering_is_not_cut_off() -> None:
    """Though the last of many requests waits longer than one may: WAIT takes its time for each."""
    transport = Transport()
    line = Line(SimpleNamespace(_writer=SimpleNamespace(transport=transport), socket_timeout=1.0))
    asked = [line.ask(b"", ALONE) for _ in range(4)]
    for reply in asked:
        await asyncio.sleep(0.6)
        line.get_buffer(0)[:5] = b"+OK\r\n"
        line.buffer_updated(5)
        assert await reply == b"OK"
    line.ask(b"", ALONE)
    async with asyncio.timeout(30):
        while not transport.is_over:  # noqa: ASYNC110  now it is silent
            await asyncio.sleep(0.1)
