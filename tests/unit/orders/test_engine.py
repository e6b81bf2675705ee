"""The decision engine by itself: settings, order IDs, keys, fingerprints, records."""

from __future__ import annotations

import string
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lockkit
from lockkit.leases.client import LockClient
from lockkit.model.errors import BackendUnavailable, ConfigurationError
from lockkit.model.types import StoredRecord
from lockkit.orders import (
    Discard,
    Identity,
    Keep,
    Order,
    OrderRequest,
    OrderResponse,
    Orders,
    Payload,
    Proceed,
    Record,
    Refusal,
    Replay,
    adrive,
    drive,
    read_order_settings,
)
from lockkit.orders.forms import FormIds
from lockkit.orders.order import MalformedOrderIdError, parse_order_id
from lockkit.orders.record import (
    VERSION,
    RecordState,
    SentFile,
    Snapshot,
    as_sent,
    dump_headers,
    load_headers,
)
from lockkit.orders.stored_form import Stored, dump


class Store(dict[str, Record]):
    """Records in a dict."""

    down = False

    def find(self, key: str, *, fresh: bool) -> Record | None:
        if self.down:
            raise BackendUnavailable("down")
        return self.get(key)


class AsyncStore:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def find(self, key: str, *, fresh: bool) -> Record | None:
        return self._store.find(key, fresh=fresh)


@pytest.fixture
def locks() -> Iterator[LockClient]:
    client = lockkit.connect("memory://")
    yield client
    client.close()


@pytest.fixture
def orders() -> Orders:
    return Orders(read_order_settings({"PATHS": ["^/"], "WAIT": 0}))


def facts(**changes: Any) -> OrderRequest:
    headers = changes.pop("headers", {"Idempotency-Key": "A-1"})
    identity = changes.pop("identity", Identity(user="auth.User:1"))
    payload = changes.pop("payload", Payload(body=b"{}"))
    defaults: dict[str, Any] = {
        "method": "POST",
        "path": "/orders/",
        "route": "orders/",
        "header": headers.get,
        "media_type": "application/json",
        "read_payload": lambda: payload,
        "read_identity": lambda: identity,
    }
    return OrderRequest(**{**defaults, **changes})


def order_of(orders: Orders, **changes: Any) -> Order:
    order = orders.identify(facts(**changes))
    assert isinstance(order, Order)
    return order


def test_an_order_from_its_first_request_to_its_replay(orders: Orders, locks: LockClient) -> None:
    store = Store()
    order = order_of(orders)
    first = drive(orders.admit(order), store, locks)
    assert isinstance(first, Proceed)
    assert first.lease.fencing_token > 0
    kept = orders.conclude(
        order, OrderResponse(201, [("content-type", "a/b"), ("Date", "x")], b"y")
    )
    assert isinstance(kept, Keep)
    store[order.key] = kept.record
    first.lease.release()
    again = drive(orders.admit(order), store, locks)
    assert isinstance(again, Replay)
    assert again.snapshot == (201, (("Content-Type", "a/b"),), b"y")


async def test_the_same_awaited(orders: Orders) -> None:
    from lockkit.aio import connect

    client, store = connect("memory://"), Store()
    order = order_of(orders)
    first = await adrive(orders.admit(order), AsyncStore(store), client)
    assert isinstance(first, Proceed)
    second = await adrive(orders.admit(order), AsyncStore(store), client)
    assert isinstance(second, Refusal)
    assert (second.status, second.code) == (409, "order-running")
    await first.lease.release()
    await client.close()


def test_what_is_utf8_is_compared_as_ever() -> None:
    """So is the character that replaces other bytes, and fields in any order."""
    raw = b"b=%C3%BC+1&a=%EF%BF%BD&&a=&c"
    known = [("a", "\ufffd"), ("a", ""), ("b", "ü 1"), ("c", "")]
    assert sorted(as_sent(known, lambda: raw), key=lambda pair: pair[0]) == known
    assert as_sent([("a", "ü")], lambda: b"anything") == [("a", "ü")]


def test_a_store_that_is_down_lets_nobody_in_and_keeps_no_lock(
    orders: Orders, locks: LockClient
) -> None:
    store = Store()
    store.down = True
    answer = drive(orders.admit(order_of(orders)), store, locks)
    assert isinstance(answer, Refusal)
    assert answer.status == 503
    order = order_of(orders)
    lease = locks.lock(order.lock_name).acquire()
    answer = drive(orders.reconsider(Proceed(order, lease)), store, locks)
    assert isinstance(answer, Refusal)
    lease.release()


def test_reconsidering_finds_the_winner_or_goes_on(orders: Orders, locks: LockClient) -> None:
    order, store = order_of(orders), Store()
    lease = locks.lock(order.lock_name).acquire()
    mine = Proceed(order, lease)
    assert drive(orders.reconsider(mine), store, locks) == mine
    store[order.key] = orders.running(order)._replace(left=0)
    assert drive(orders.reconsider(mine), store, locks) == Proceed(order, lease, replaces=True)
    assert not lease.released
    store[order.key] = orders.running(order)._replace(state=RecordState.DONE)
    assert isinstance(drive(orders.reconsider(mine), store, locks), Replay)
    assert not lease.released, "it is given back as it was taken, when all is over"
    lease.release()


def test_a_record_that_was_left_running_is_never_run_over(
    orders: Orders, locks: LockClient
) -> None:
    order = order_of(orders)
    answer = drive(orders.admit(order), Store({order.key: orders.running(order)}), locks)
    assert isinstance(answer, Refusal)
    assert (answer.status, answer.code) == (409, "order-orphaned")


@pytest.mark.parametrize("status", [401, 403, 408, 409, 423, 425, 429, 500, 503, 199])
def test_what_is_not_stored(status: int, orders: Orders) -> None:
    assert orders.conclude(order_of(orders), OrderResponse(status, [], b"")) == Discard()


@pytest.mark.parametrize(
    "changes",
    [
        {"identity": Identity(user="auth.User:2")},
        {"identity": Identity(user="auth.User:1", tenant="t")},
        {"identity": Identity(authorization="auth.User:1")},
        {"identity": Identity(session="auth.User:1")},
        {"identity": Identity(scope="auth.User:1", user="auth.User:1")},
        {"route": "orders/x"},
        {"headers": {"Idempotency-Key": "A-2"}},
    ],
    ids=str,
)
def test_what_makes_another_order(changes: dict[str, Any], orders: Orders) -> None:
    assert order_of(orders).key != order_of(orders, **changes).key


def test_paths_may_be_empty_and_the_error_says_so() -> None:
    assert read_order_settings({"PATHS": []}).paths == ()
    with pytest.raises(ConfigurationError, match="a list of strings, which may be empty"):
        read_order_settings({"PATHS": "^/orders/"})


def test_a_namespace_makes_another_order_and_passes_for_nothing_else() -> None:
    """For two applications with one store. No part of the key can pass for another part."""
    shop, staff, nobodys = [
        Orders(read_order_settings({"PATHS": [], "NAMESPACE": name}))
        for name in ("shop", "staff", "")
    ]
    assert order_of(shop).key == order_of(shop).key
    tenant = Identity(user="auth.User:1", tenant="shop")
    keys = {order_of(each).key for each in (shop, staff, nobodys)}
    assert len(keys | {order_of(nobodys, identity=tenant).key}) == 4
    form = FormIds(lambda: ["secret"])
    value = form.issue("a-guest")
    guest = {"headers": {"Idempotency-Key": value}, "identity": Identity(guest="a-guest")}
    assert len({order_of(Orders(o.settings, form), **guest).key for o in (shop, staff)}) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "PATCH"},
        {"path": "/orders/1"},
        {"sent_path": "/shop/orders/"},
        {"query": [("a", "1")]},
        {"media_type": "text/plain"},
        {"payload": Payload(body=b"{ }")},
        {"payload": Payload(form=[("a", "1")])},
        {"payload": Payload(files=[SentFile("f", "n", 1, "x")])},
    ],
    ids=str,
)
def test_what_makes_another_request(changes: dict[str, Any], orders: Orders) -> None:
    one, other = order_of(orders), order_of(orders, **changes)
    assert (one.key, one.fingerprint != other.fingerprint) == (other.key, True)
    assert one.tag != other.tag


TEXT = st.text(max_size=4)
PAIRS = st.lists(st.tuples(TEXT, TEXT), max_size=3)


@given(st.tuples(PAIRS, PAIRS), st.tuples(PAIRS, PAIRS))
def test_query_and_form_never_pass_for_one_another(one: Any, other: Any) -> None:
    orders = Orders(read_order_settings({"PATHS": ["^/"]}))

    def fingerprint(query: Any, form: Any) -> str:
        return order_of(orders, query=query, payload=Payload(form=form)).fingerprint

    def normal(pairs: Any) -> Any:
        return sorted(pairs, key=lambda pair: pair[0])

    same = [normal(p) for p in one] == [normal(p) for p in other]
    assert (fingerprint(*one) == fingerprint(*other)) is same


@given(st.text(string.printable, max_size=300))
def test_an_order_id_is_refused_or_printable(text: str) -> None:
    try:
        parsed = parse_order_id(text)
    except MalformedOrderIdError:
        return
    assert 1 <= len(parsed) <= 255
    assert parsed.isascii()
    assert parsed.isprintable()


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("abc", "abc"),
        ('"a,b c"', "a,b c"),
        (r'"a\"b\\"', 'a"b\\'),
        ("  x\t", "x"),
        ("x" * 255, None),
    ],
)
def test_order_ids(text: str, parsed: str | None) -> None:
    assert parse_order_id(text) == (text if parsed is None else parsed)


def test_the_label_of_the_lock_is_short_and_ends_with_the_tag(orders: Orders) -> None:
    order = order_of(orders, path="/" + "x" * 500, headers={"Idempotency-Key": "y" * 255})
    assert len(order.label) <= 200
    assert order.label.endswith(f"#{order.tag}")


def test_people_are_shown_a_path_that_every_terminal_and_database_can_keep(orders: Orders) -> None:
    order = order_of(orders, path="/a\x00b\nc\x1b[31m\u202e")
    assert order.request == "POST /a%00b%0Ac%1B%5B31m%E2%80%AE"
    assert order.label.isprintable()


def test_headers_are_dumped_and_loaded_and_only_those_of_the_list() -> None:
    pairs = (("Content-Type", "text/plain"), ("ETag", '"ü"'))
    assert load_headers(dump_headers(pairs)) == pairs
    assert load_headers('[["Set-Cookie", "x"], ["location", "/"]]') == (("Location", "/"),)
    with pytest.raises(ValueError, match="list"):
        load_headers("{}")


KNOWN = [Identity(user="auth.User:1", session="s"), Identity(scope="cart-7", session="s")]
GUESTS = [Identity(authorization="made up"), Identity(session="s")]


def kept(orders: Orders, order: Order, size: int) -> tuple[float, str]:
    """Seconds, and what is left of a response of so many bytes."""
    ending = orders.conclude(order, OrderResponse(200, [("Location", "/1")], b"x" * size))
    assert isinstance(ending, Keep)
    assert ending.record.left == orders.running(order).left
    return ending.record.left, str(ending.record.state)


@pytest.mark.parametrize("who", [*KNOWN, *GUESTS], ids=str)
def test_little_is_kept_and_not_for_long_of_owners_that_no_login_vouches_for(
    who: Identity, orders: Orders
) -> None:
    order = order_of(orders, identity=who)
    small, guest = 16 * 1024, who in GUESTS
    assert kept(orders, order, small) == (3600 if guest else 86400, "done")
    assert kept(orders, order, small + 1)[1] == ("tombstone" if guest else "done")


@pytest.mark.parametrize("who", [KNOWN[0], GUESTS[0]], ids=str)
def test_what_is_kept_of_guests_is_a_setting_and_never_more_than_of_users(who: Identity) -> None:
    def engine(**settings: Any) -> Orders:
        return Orders(read_order_settings({"PATHS": [], **settings}))

    more = engine(GUEST_TTL=7200, GUEST_MAX_RESPONSE=100_000)
    less = engine(TTL=60, MAX_RESPONSE=10)
    guest = who in GUESTS
    assert kept(more, order_of(more, identity=who), 100_000) == (7200 if guest else 86400, "done")
    assert kept(less, order_of(less, identity=who), 11) == (60, "tombstone")


@pytest.mark.parametrize("size", [8, 9], ids="{} KiB".format)
@pytest.mark.parametrize("body", [b"sold", None], ids=["body", "stream"])
def test_headers_are_not_kept_at_any_length(orders: Orders, size: int, body: bytes | None) -> None:
    """A view may send somebody on to where its client says."""
    location = ("Location", "/" * (size * 1024 - len("Location")))
    ending = orders.conclude(order_of(orders), OrderResponse(302, [location], body))
    assert isinstance(ending, Keep)
    state = "done" if body is not None and size == 8 else "tombstone"
    assert ending.record.state == state
    assert ending.record.snapshot.headers == ((location,) if size == 8 else ())


def test_what_a_client_writes_into_a_path_is_not_kept_at_any_length(orders: Orders) -> None:
    assert len(orders.running(order_of(orders, path="/" + "x" * 9000)).request) == 255


def test_nothing_secret_shows(orders: Orders) -> None:
    identity = Identity(authorization="Bearer hunter2", session="s3cret")
    order = order_of(orders, identity=identity)
    shown = f"{identity!r} {order!r} {order.label} {orders.running(order)!r}"
    assert "hunter2" not in shown
    assert "s3cret" not in shown


@pytest.mark.parametrize("changes", [{"version": VERSION + 1}, {"fingerprint": "9:abc"}])
def test_a_newer_record_is_not_run_over_even_if_it_looks_expired(
    changes: dict[str, Any], orders: Orders, locks: LockClient
) -> None:
    """What its times mean is not known either."""
    store, order = Store(), order_of(orders)
    store[order.key] = orders.running(order)._replace(left=0, **changes)
    answer = drive(orders.admit(order), store, locks)
    assert isinstance(answer, Refusal)
    assert (answer.status, answer.code) == (503, "order-record-unreadable")
    assert not list(locks.holders())


def large(source: str, media_type: str, **changes: Any) -> Any:
    orders = Orders(read_order_settings({"ORDER_ID": [source], "PATHS": ["^/"], "MAX_REQUEST": 9}))
    read: list[int] = []

    def payload() -> Payload:
        read.append(1)
        return Payload(body=b"x" * 10)

    answer = orders.identify(facts(media_type=media_type, read_payload=payload, **changes))
    return answer, read


@pytest.mark.parametrize("source", ["json:order_id", "form:order_id", "header:X-Other"])
@pytest.mark.parametrize("media_type", ["image/png", "text/plain", ""])
@pytest.mark.parametrize("length", [10, None])
def test_a_large_body_that_can_bring_no_id_is_let_through_unread(
    source: str, media_type: str, length: int | None
) -> None:
    assert large(source, media_type, content_length=length) == (None, [])


@pytest.mark.parametrize(
    ("source", "media_type"),
    [
        ("json:order_id", "application/json"),
        ("json:order_id", "application/problem+json"),
        ("form:order_id", "application/x-www-form-urlencoded"),
        ("form:order_id", "multipart/form-data"),
    ],
)
def test_a_large_body_that_may_bring_an_id_is_refused(source: str, media_type: str) -> None:
    answer, read = large(source, media_type, content_length=10)
    assert (answer.status, read) == (413, [])


@pytest.mark.parametrize(
    "pair", [("field", "12345"), ("v", "x" * 9), ("v", "\u4e2d" * 3), ("v", "\ud800" * 3)]
)
def test_a_form_without_a_known_length_counts_with_its_names_and_in_bytes(
    pair: tuple[str, str],
) -> None:
    orders = Orders(
        read_order_settings({"ORDER_ID": ["form:v"], "PATHS": ["^/"], "MAX_REQUEST": 9})
    )
    payload = Payload(form=[pair])
    answer: Any = orders.identify(facts(media_type="multipart/form-data", payload=payload))
    assert answer.status == 413


def test_a_converter_that_makes_a_bool_makes_no_order_id() -> None:
    """All requests would be the order "True"."""
    orders = Orders(read_order_settings({"ORDER_ID": ["kwargs:paid"], "PATHS": ["^/"]}))
    with pytest.raises(ConfigurationError, match="converter returns bool"):
        orders.identify(facts(kwargs={"paid": True}))


@pytest.mark.parametrize(
    "wrong",
    [
        {"ORDER_IDS": []},
        {"ORDER_ID": []},
        {"ORDER_ID": ["cookie:x"]},
        {"ORDER_ID": "header:x"},
        {"ORDER_ID": ["header:HTTP_X_ORDER_ID"]},  # so it is called in Django's META only
        {"REQUIRED": 1},
        {"PATHS": ["("]},
        {"PATHS": [""]},  # as of a variable that was not filled in: every path
        {"PATHS": "^/"},
        {"PATHS": None},
        {"METHODS": ["GET"]},
        {"TTL": 0},
        {"TTL": None},
        {"WAIT": None},
        {"WAIT": -1},
        {"MAX_WAITERS": None},
        {"MAX_REQUEST": -1},
        {"MAX_RESPONSE": 1.5},
        {"GUEST_TTL": 0},
        {"GUEST_MAX_RESPONSE": -1},
        {"SCOPE": "nodots"},
        {"USING": 3},
        {"ALIAS": ""},
        {"STORE": "cache"},
        {"STORE": None},
        {"STORE": "redis"},
        {"STORE": "redis", "NAMESPACE": ""},
        {"STORE": "redis", "NAMESPACE": "shop", "USING": "default"},
        {"STORE": "redis", "NAMESPACE": "shop", "LOCK": "never"},
        {"LOCK": "sometimes"},
        {"NAMESPACE": 7},
        {"NAMESPACE": None},
        {"ORPHANS": "forget"},
        {"RECOVER": "nodots"},
        [],
    ],
    ids=str,
)
def test_wrong_settings_are_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="LOCKKIT_ORDERS"):
        read_order_settings({"PATHS": ["^/"], **wrong} if isinstance(wrong, dict) else wrong)


@pytest.mark.parametrize("key", ["WAIT", "MAX_WAITERS", "MAX_REQUEST"])
def test_the_remedy_for_a_limit_is_not_none(key: str) -> None:
    """Which is refused as well."""
    with pytest.raises(ConfigurationError, match=r"must be (seconds|a number of)") as refused:
        read_order_settings({"PATHS": ["^/"], key: -1})
    assert "None" not in str(refused.value)


def test_a_wrong_method_is_told_with_those_that_may_be_there() -> None:
    with pytest.raises(ConfigurationError, match="must be one of POST, PUT, PATCH, DELETE"):
        read_order_settings({"PATHS": ["^/"], "METHODS": ["GET"]})


@pytest.mark.parametrize("mapping", [None, {}, {"REQUIRED": True}, {"ORDER_ID": ["json:id"]}])
def test_nobody_outside_chooses_which_paths_have_orders(mapping: Any) -> None:
    """An order rolls back: a header on any request must not be enough."""
    with pytest.raises(ConfigurationError, match=r"missing: PATHS says .*orders.*\[\] leaves"):
        read_order_settings(mapping)


def test_with_no_paths_only_views_that_say_so_have_orders() -> None:
    settings = read_order_settings({"PATHS": [], "REQUIRED": True, "ORDER_ID": ["json:id"]})
    assert not Orders(settings).covers("POST", "/")


def test_the_defaults() -> None:
    settings = read_order_settings({"PATHS": ["^/x"]})
    assert [str(source) for source in settings.order_id] == [
        "header:Idempotency-Key",
        "header:X-Order-ID",
    ]
    assert (settings.ttl, settings.wait, settings.max_request) == (86400, 2, 1 << 20)
    orders = Orders(settings)
    assert orders.covers("POST", "/x")
    assert not orders.covers("GET", "/x")
    assert not orders.covers("POST", "/y")


def test_the_formats_of_keys_and_fingerprints_are_for_ever(orders: Orders) -> None:
    """Another key or fingerprint makes retries run twice after a deploy: see ``KEY_VERSION``."""
    payload = Payload(form=[("a", "1")], files=[SentFile("f", "n.txt", 3, "ab" * 32, "text/plain")])
    order = order_of(orders, query=[("q", "2")], payload=payload)
    assert order.key == "7ed4ae96987c36bf63827efd4704334ac832221a75b3c68b2aa12d1c97b2c921"
    assert order.fingerprint == (
        "2:11c98fd9d1598d33bdc83c0fcc8d89610c440d33f7fae2b72b413425001d1273"
    )


def test_a_record_shows_neither_its_answer_nor_what_was_sent_in_its_repr() -> None:
    """A log and a traceback show it."""
    order = Order("A-1", "canary", "2:canary", "POST /", also=("2:canary",))
    answer = Snapshot(200, (("Location", "canary"),), b"canary")
    record = Record("canary", "A-1", "POST /", "2:canary", 1.0, RecordState.DONE, answer)
    stored = StoredRecord(dump(record), 1, running=False, left=1.0)
    inside = [Proceed(order, None), Replay(answer), Keep(record), Stored(record, None)]
    for each in (order, answer, record, stored, *inside):
        assert "canary" not in repr(each)
        assert repr(each).startswith(f"{type(each).__name__}(")
