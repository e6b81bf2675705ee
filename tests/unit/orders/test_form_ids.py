"""The order IDs of forms: their owner, and that nobody can forge one. No framework."""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace
from typing import Any

import pytest

from lockkit.leases.lease import give_back
from lockkit.model.errors import ConfigurationError
from lockkit.orders import (
    Identity,
    Order,
    OrderRequest,
    Orders,
    Payload,
    Proceed,
    Refusal,
    drive,
    read_order_settings,
)
from lockkit.orders.forms import FormIds, hidden_field, tell_uncovered
from lockkit.orders.order import MalformedOrderIdError
from lockkit.orders.refusals import FORM_EXPIRED

FORMS = FormIds(lambda: ["the key of the application"])
ALICE = Identity(user="auth.User:1")
GUEST = Identity(guest="a-secret")


def orders(forms: FormIds | None = FORMS, **settings: Any) -> Orders:
    mapping = {"ORDER_ID": ["form:order_id"], "PATHS": ["^/"], **settings}
    return Orders(read_order_settings(mapping), forms)


def sent(value: str, who: Identity, quantity: str = "1", rules: Orders | None = None) -> Any:
    fields = [("order_id", value), ("quantity", quantity)]
    request = OrderRequest(
        method="POST",
        path="/orders/",
        route="orders/",
        header=lambda _: None,
        media_type="application/x-www-form-urlencoded",
        read_payload=lambda: Payload(form=fields),
        read_identity=lambda: who,
    )
    return (rules or orders()).identify(request)


def code(answer: object) -> str:
    assert isinstance(answer, Refusal)
    return answer.code


def test_a_value_is_new_each_time_and_tells_nothing_of_the_guest() -> None:
    values = {FORMS.issue(guest) for guest in ("a-secret", "a-secret", None, None)}
    assert len({part for value in values for part in value.split(".")[1:]}) == 11  # "u" is twice
    assert not any("a-secret" in value for value in values)
    assert all(len(value) < 200 and value.isprintable() for value in values)


def test_the_order_id_is_the_short_part_of_the_value() -> None:
    value = FORMS.issue(None)
    order = sent(value, ALICE)
    assert order.order_id == value.split(".")[1]
    assert len(order.order_id) == 30


@pytest.mark.parametrize(
    "spoil",
    [
        lambda v: v[:-1] + ("A" if v[-1] != "A" else "B"),
        lambda v: v.replace("lk1.", "lk1.f", 1),
        lambda v: v.replace("lk1.", "lk1.0", 1),
        lambda v: ".".join([*v.split(".")[:2], "u", v.split(".")[3]]),
        lambda v: v.rpartition(".")[0],
        lambda v: v + "\n",
        lambda v: v + ".x",
        lambda _: "lk1.",
        lambda _: "lk1." + "." * 90,
    ],
)
def test_a_value_that_was_tampered_with_is_refused(spoil: Any) -> None:
    assert code(sent(spoil(FORMS.issue("a-secret")), GUEST)) == "order-id-malformed"


def test_a_value_of_another_application_is_refused() -> None:
    theirs = FormIds(lambda: ["another key"]).issue("a-secret")
    assert code(sent(theirs, GUEST)) == "order-id-malformed"
    with pytest.raises(MalformedOrderIdError):
        FormIds(list).read(theirs)


def test_keys_are_rotated() -> None:
    old = FormIds(lambda: ["old"])
    both, new = FormIds(lambda: ["new", "old"]), FormIds(lambda: ["new"])
    value, sealed = old.issue("a-secret"), old.seal("text")
    order = sent(value, GUEST, rules=orders(both))
    assert order == sent(value, GUEST, rules=orders(old))
    assert both.unseal(sealed) == "text"
    assert code(sent(value, GUEST, rules=orders(new))) == "order-id-malformed"
    assert new.unseal(sealed) is None
    assert new.read(both.issue(None)) is not None


def test_a_sealed_text_cannot_be_made_up() -> None:
    sealed = FORMS.seal("a.b")
    assert FORMS.unseal(sealed) == "a.b"
    for wrong in ("", ".", "a.b", sealed.replace("a", "c", 1), f"{sealed}=", "a.b.\xff\ud800"):
        assert FORMS.unseal(wrong) is None
    value = FORMS.issue(None)
    assert FORMS.unseal(value) is None  # a signature of one kind is none of the other


def test_without_a_secret_key_there_is_nothing_to_sign_with() -> None:
    with pytest.raises(ConfigurationError, match="SECRET_KEY"):
        FormIds(lambda: [""]).issue(None)


def test_the_field_is_escaped() -> None:
    assert 'value="&quot;&gt;&lt;x"' in hidden_field("order_id", '"><x')


def test_a_form_of_a_user_is_an_order_of_whoever_is_logged_in() -> None:
    value = FORMS.issue(None)
    mine, again = sent(value, ALICE), sent(value, Identity(user="auth.User:1", session="other"))
    bobs = sent(value, Identity(user="auth.User:2"))
    assert mine == again
    assert mine.key != bobs.key


def test_a_form_of_a_user_is_worth_nothing_without_a_login() -> None:
    value = FORMS.issue(None)
    for who in (Identity(), GUEST, Identity(session="s"), Identity(authorization="Basic x")):
        assert code(sent(value, who)) == "order-form-of-another"


def test_a_form_of_a_guest_is_his_before_and_after_his_login() -> None:
    value = FORMS.issue("a-secret")
    before = sent(value, GUEST)
    after = sent(value, Identity(user="auth.User:1", guest="a-secret"))
    assert before.key == after.key
    assert after.same(before.fingerprint)  # the guest's order is replayed to the user
    assert not before.same(after.fingerprint)  # and the user's to no guest
    bob = sent(value, Identity(user="auth.User:2", guest="a-secret"))
    assert not bob.same(after.fingerprint)  # nor to another user
    assert not after.same(sent(value, GUEST, quantity="2").fingerprint)


def test_a_form_of_a_guest_is_worth_nothing_to_others() -> None:
    value = FORMS.issue("a-secret")
    for who in (Identity(), Identity(guest="another"), ALICE, Identity(session="a-secret")):
        assert code(sent(value, who)) == "order-form-of-another"


def test_the_scope_of_the_settings_decides_alone() -> None:
    value = FORMS.issue("a-secret")
    cart = Identity(scope="cart-7", guest="a-secret")
    assert sent(value, cart).key == sent(value, Identity(scope="cart-7", user="x")).key


def test_tenants_are_kept_apart() -> None:
    value = FORMS.issue("a-secret")
    keys = {sent(value, Identity(guest="a-secret", tenant=t)).key for t in ("a", "b")}
    assert len(keys) == 2


def test_without_forms_the_value_is_an_order_id_like_any_other() -> None:
    assert sent("lk1.x", ALICE, rules=orders(None)).order_id == "lk1.x"


class Records(dict[str, Any]):
    def find(self, key: str, *, fresh: bool) -> Any:
        return self.get(key)


@pytest.mark.parametrize(("who", "seconds"), [(GUEST, 3600), (ALICE, 86400)], ids=["guest", "user"])
def test_a_form_that_outlived_its_record_does_not_order_again(
    who: Identity, seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A guest's record lives for an hour, a user's for a day."""
    import lockkit

    locks, records, rules = lockkit.connect("memory://"), Records(), orders()
    value = FORMS.issue(who.guest)
    order = sent(value, who, rules=rules)
    assert rules.running(order).left == seconds
    first = drive(rules.admit(order), records, locks)
    assert isinstance(first, Proceed)
    give_back(first.lease)
    issued = FORMS.read(value)
    assert issued is not None
    monkeypatch.setattr("time.time", lambda: issued.made + seconds - 1.0)
    assert not sent(value, who, rules=rules).stale
    monkeypatch.setattr("time.time", lambda: issued.made + seconds + 1.0)
    late = sent(value, who, rules=rules)
    assert isinstance(late, Order) and late.stale
    assert drive(rules.admit(late), records, locks) == FORM_EXPIRED
    assert not list(locks.holders())
    locks.close()


def test_a_form_that_grows_old_while_its_order_runs_does_not_say_that_there_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Told to reload the form, its sender would order again."""
    import lockkit

    locks, records, rules = lockkit.connect("memory://"), Records(), orders(WAIT=0.01)
    value = FORMS.issue(GUEST.guest)
    first = drive(rules.admit(sent(value, GUEST, rules=rules)), records, locks)
    assert isinstance(first, Proceed)
    issued = FORMS.read(value)
    assert issued is not None
    monkeypatch.setattr("time.time", lambda: issued.made + 3601.0)
    late = sent(value, GUEST, rules=rules)
    assert late.stale
    assert code(drive(rules.admit(late), records, locks)) == "order-running"
    give_back(first.lease)
    assert drive(rules.admit(late), records, locks) == FORM_EXPIRED
    assert not list(locks.holders())
    locks.close()


def test_a_duplicate_of_a_guest_who_has_logged_in_waits_for_the_first() -> None:
    import lockkit

    locks, rules = lockkit.connect("memory://"), orders(WAIT=0.01)
    value = FORMS.issue("a-secret")
    first = drive(rules.admit(sent(value, GUEST)), Records(), locks)
    assert isinstance(first, Proceed)
    user = Identity(user="auth.User:1", guest="a-secret")
    assert code(drive(rules.admit(sent(value, user)), Records(), locks)) == "order-running"
    other = sent(value, user, quantity="2")
    assert code(drive(rules.admit(other), Records(), locks)) == "order-id-reused"
    give_back(first.lease)
    locks.close()


class Fields(dict[str, list[str]]):
    def lists(self) -> Any:
        return self.items()


@pytest.mark.parametrize("where", ["body", "form"])
@pytest.mark.parametrize("signed", [True, False])
def test_a_large_request_that_is_not_an_order_is_not_copied(
    where: str, signed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Not even one that is not text, and has the order ID at its end."""
    body = b"\xff\xe2lk1.\xf0\x9f " * 100_000 + (FORMS.issue(None).encode() if signed else b"")
    request = SimpleNamespace(method="POST", path="/", form=None, body=None)
    vars(request)[where] = body if where == "body" else Fields(x=[body.decode("latin-1")])
    tracemalloc.start()
    try:
        tell_uncovered(FORMS, request, "form", "body")
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(caplog.records) == int(signed)
    assert most < len(body) / 10
