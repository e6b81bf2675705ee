"""Names: the same data gives the same name, other data another."""

from __future__ import annotations

import enum
import uuid
from hashlib import sha256

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import lockkit
from lockkit.model.conversions import converted
from lockkit.model.errors import ConfigurationError, InvalidName
from lockkit.model.names import Template, check_name, json_value, percent_encoded, typed_json

WRITTEN = 0x40000
"""From here on Unicode has no printable characters, and will have none for a long time."""

ENCODED = "6aa61c59f0ba3de4cbcc353910520b08a866864f5c64ef86861f95dd4b463d2d"
"""SHA-256 of all characters before that, percent-encoded, in UTF-8."""

LOWER = "faf74fcedbf0448d4aaccf52a66fdffff83fd672a579ac08bb870cc6b601a5c9"
"""The same after ``:lower``."""


@pytest.mark.parametrize(
    ("template", "values", "expected"),
    [
        ("nightly-report", {}, "nightly-report"),
        ("stock:{sku}", {"sku": "42"}, "stock:42"),
        ("stock:{sku}", {"sku": 42}, "stock:42"),
        ("stock:{sku}", {"sku": "A:1"}, "stock:A%3A1"),
        ("stock:{sku}", {"sku": "100%"}, "stock:100%25"),
        ("stock:{sku}", {"sku": "a\nb\x00"}, "stock:a%0Ab%00"),
        ("stock:{sku}", {"sku": "\u202eé\u2028"}, "stock:%E2%80%AEé%E2%80%A8"),
        ("{a}:{b}", {"a": "x:y", "b": "z"}, "x%3Ay:z"),
        ("o:{id}", {"id": uuid.UUID(int=7)}, "o:00000000-0000-0000-0000-000000000007"),
        ("a {b}*[]", {"b": "/../"}, "a /../*[]"),
    ],
)
def test_templates(template: str, values: dict[str, object], expected: str) -> None:
    assert lockkit.name(template, **values) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("ß", "ß"),
        ("é", "é"),
        ("e\u0301", "e\u0301"),  # a combining accent
        ("中", "中"),
        ("٣", "٣"),
        ("€", "€"),
        ("a b", "a b"),
        ("é b:%\x7f", "é b%3A%25%7F"),
        ("\u0085", "%C2%85"),  # a control character
        ("\u00a0", "%C2%A0"),  # a space that does not break
        ("\u00ad", "%C2%AD"),  # a soft hyphen
        ("\u200b", "%E2%80%8B"),  # a space without width
        ("\u2028", "%E2%80%A8"),  # a separator of lines
        ("\u202e", "%E2%80%AE"),  # turns the text round
        ("\ue000", "%EE%80%80"),  # for private use
        ("\U000e0041", "%F3%A0%81%81"),  # an invisible tag
        ("\u0378", "%CD%B8"),  # unassigned, still
        ("\u1e9e", "%E1%BA%9E"),  # ẞ, of Unicode 5.1
        ("\U0001f600", "%F0%9F%98%80"),  # a smile, of Unicode 6.1
        ("\U0001fae8", "%F0%9F%AB%A8"),  # of Unicode 15.0: printable since Python 3.12
        ("\U0002ebf0", "%F0%AE%AF%B0"),  # of Unicode 15.1: printable since Python 3.13
    ],
)
def test_every_version_of_python_makes_the_same_name(value: str, expected: str) -> None:
    assert lockkit.name("{sku}", sku=value) == expected


def test_what_stands_in_a_name_as_it_is_never_changes() -> None:
    """Each Python that runs this must find these characters, and no others."""
    text = "".join(map(chr, (*range(0xD800), *range(0xE000, WRITTEN))))
    assert sha256(percent_encoded(text).encode()).hexdigest() == ENCODED


@pytest.mark.parametrize(
    ("conversion", "value", "expected"),
    [
        *(("int", value, "1") for value in (1, "1", "01", " 1", "+1", "1\n", "0" * 254 + "1")),
        ("int", "-0", "0"),
        ("int", "-7", "-7"),
        *(
            ("uuid", value, "0badc0de-0000-0000-0000-000000000001")
            for value in (
                uuid.UUID("0badc0de-0000-0000-0000-000000000001"),
                "0badc0de-0000-0000-0000-000000000001",
                "0BADC0DE-0000-0000-0000-000000000001",
                "0badc0de000000000000000000000001",
                "{0badc0de-0000-0000-0000-000000000001}",
                "urn:uuid:0badc0de-0000-0000-0000-000000000001",
            )
        ),
        *(("lower", value, "ann@é.org") for value in ("ann@é.org", "Ann@É.ORG")),
        ("lower", "ΟΔΟΣ", "οδοσ"),  # by itself: not by its place in the word
        ("lower", "\u1e9e", "%E1%BA%9E"),  # ẞ, of Unicode 5.1: as it is
        ("lower", 7, "7"),
        *(("str", value, value) for value in ("01", "Ann", "\uff11")),
        ("str", 7, "7"),
    ],
)
def test_what_stands_for_one_value_makes_one_name(
    conversion: str, value: object, expected: str
) -> None:
    assert lockkit.name(f"stock:{{sku:{conversion}}}", sku=value) == f"stock:{expected}"


@pytest.mark.parametrize(
    ("conversion", "value", "match"),
    [
        # What Python takes for a number, and a database refuses or takes for another one.
        *(("int", value, "not a whole number") for value in ("\uff11", "1_0", "1\u00a0", "٣")),
        *(("int", value, "not a whole number") for value in ("1.0", "1e0", "0x1", "1a", "1" * 256)),
        ("int", uuid.UUID(int=1), "not a whole number"),
        ("int", True, "not a whole number"),
        ("int", "", "not a whole number"),
        ("int", None, "has no value"),
        *(("uuid", value, "not a UUID") for value in ("1", "x" * 32, "0x" + "1" * 30, 1)),
        ("uuid", "1" * 31 + "_", "not a UUID"),
        ("lower", True, "is a bool"),
        ("str", 1.5, "is a float"),
    ],
)
def test_what_is_no_such_value_makes_none(conversion: str, value: object, match: str) -> None:
    with pytest.raises(InvalidName, match=match) as caught:
        lockkit.name(f"stock:{{sku:{conversion}}}", sku=value)
    assert not isinstance(value, str) or value == "" or value not in str(caught.value)


def test_the_lower_case_of_a_character_is_one_for_ever() -> None:
    text = "".join(map(chr, (*range(0xD800), *range(0xE000, WRITTEN))))
    lower = str(converted("lower", "{sku}", text))
    assert sha256(lower.encode()).hexdigest() == LOWER


@pytest.mark.parametrize("field", ["{sku:itn}", "{sku:}", "{sku:INT}", "{sku:int:str}", "{:int}"])
def test_a_conversion_that_is_not_there(field: str) -> None:
    with pytest.raises(InvalidName):
        Template(f"stock:{field}")


class Color(str, enum.Enum):  # noqa: UP042  what str() makes of it is not its value
    RED = "red"


class Size(int, enum.Enum):
    SMALL = 1


class Loud(str):
    """Another string when it is printed."""

    __slots__ = ()

    def __str__(self) -> str:
        return self.upper()


@pytest.mark.parametrize(
    ("value", "equal"),
    [(Color.RED, "red"), (Size.SMALL, 1), (Loud("red"), "red"), (enum.IntEnum("E", "A")(1), 1)],
)
def test_equal_values_make_the_same_name(value: str | int, equal: str | int) -> None:
    assert value == equal
    assert lockkit.name("stock:{s}", s=value) == lockkit.name("stock:{s}", s=equal)


def test_a_name_is_a_plain_string() -> None:
    assert type(check_name(Color.RED)) is str
    assert f"{check_name(Color.RED)}" == "red"


def test_an_int_that_cannot_be_written() -> None:
    with pytest.raises(InvalidName, match="digits"):
        lockkit.name("stock:{s}", s=10**5000)


@pytest.mark.parametrize(
    "template",
    ["", "{", "}", "a{b", "a}b", "{}", "{a b}", "{a.b}", "{user.pk}", "{0}", "{a!r}", "{a:>3}",
     "{{a}}", "{a}{b}", "{a}-{b}", "{a}:{a}{b}", ":{a} {b}:", "a\x00{b}", "\ud800", "{é}"],
)  # fmt: skip
def test_malformed_templates(template: str) -> None:
    with pytest.raises(InvalidName):
        lockkit.name(template, a="1", b="1")


@pytest.mark.parametrize("value", [None, "", True, False, 1.0, b"x", [], {}, object(), "\ud800"])
def test_values_that_make_no_name(value: object) -> None:
    with pytest.raises(InvalidName):
        lockkit.name("stock:{sku}", sku=value)


def test_a_value_without_a_field_is_refused() -> None:
    """An f-string has put it into the template as it is: other values could make the same name."""
    sku = "1:2"
    with pytest.raises(InvalidName, match=r"'stock:1:2' has no field \{sku\}.* f-string"):
        lockkit.name(f"stock:{sku}", sku=sku)


def test_a_missing_value() -> None:
    with pytest.raises(InvalidName, match=r"\{sku\} has no value"):
        lockkit.name("stock:{sku}")


@pytest.mark.parametrize("text", ["", "\0", "a\nb", "\x7f", "\x9f", "\u2029", "\ud800", "x" * 256,
                                  "é" * 128, 5, None, b"a"])  # fmt: skip
def test_what_is_no_name(text: object) -> None:
    with pytest.raises(InvalidName) as caught:
        check_name(text)
    assert len(str(caught.value)) < 200
    assert str(caught.value).isascii() or "…" in str(caught.value)


@pytest.mark.parametrize("text", ["a", "x" * 255, "é" * 127, " a ", "{}*%", "e\u0301", "\u202e"])
def test_a_name_is_taken_as_it_is(text: str) -> None:
    assert check_name(text) == text


@pytest.mark.parametrize(
    ("template", "sources"),
    [
        ("{sku}", ["kwargs"]),
        ("{kwargs.user}", ["kwargs"]),
        ("{user.pk}:{json.a.b}", ["user", "json"]),
        ("{form.x}:{query.y}:{header.X-Order-ID}", ["form", "query", "header"]),
    ],
)
def test_fields_of_a_request(template: str, sources: list[str]) -> None:
    assert [field.source for field in Template(template).fields] == sources


@pytest.mark.parametrize("template", ["{cookie.x}", "{user.name}", "{form.a.b}", "{sku.x}"])
def test_fields_that_no_request_has(template: str) -> None:
    with pytest.raises(InvalidName):
        Template(template)


def test_a_header_by_its_key_in_djangos_meta_is_told_its_name() -> None:
    with pytest.raises(InvalidName, match=r"\{header\.X-Shop\}"):
        Template("{header.HTTP_X_SHOP}")


def test_json_has_only_what_it_has() -> None:
    document = {"order": {"id": "A", "n": 1}, "list": [1]}
    assert json_value(document, ("order", "id")) == "A"
    assert json_value(document, ("order", "x")) is None
    assert json_value(document, ("list", "0")) is None
    assert json_value("text", ("order",)) is None


@pytest.mark.parametrize("value", [1.0, True, [], {}])
def test_json_of_another_type_is_refused(value: object) -> None:
    [field] = Template("{json.id}").fields
    with pytest.raises(InvalidName):
        typed_json(field, value)


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


@given(texts, texts, texts, texts)
def test_two_different_pairs_never_share_a_name(a: str, b: str, c: str, d: str) -> None:
    first, second = (lockkit.name("{x}:{y}", x=x, y=y) for x, y in ((a, b), (c, d)))
    assert (first == second) == ((a, b) == (c, d))


words = st.text("ab-%:é\U0001fae8", max_size=3)
pairs = st.tuples(words, words)


@given(words, words, words, pairs, pairs)
def test_a_template_makes_no_two_pairs_one_name(
    before: str, between: str, after: str, first: tuple[str, str], second: tuple[str, str]
) -> None:
    """Or it is refused, whatever it has before, between and after its fields."""
    text = f"{before}{{x}}{between}{{y}}{after}"
    if ":" not in between:
        with pytest.raises(ConfigurationError, match=r"needs a ':' between .x. and .y., as in"):
            Template(text)
        return
    assume(all((*first, *second)))
    made = [lockkit.name(text, x=x, y=y) for x, y in (first, second)]
    assert (made[0] == made[1]) == (first == second)


def test_megabytes_are_refused_unseen() -> None:
    with pytest.raises(InvalidName, match="1000000 characters") as caught:
        lockkit.name("stock:{sku}", sku="é" * 10**6)
    assert len(str(caught.value)) < 100


@given(st.text(max_size=300))
def test_whatever_is_a_name_fits_every_store(text: str) -> None:
    try:
        found = check_name(text)
    except InvalidName:
        return
    assert found == text
    assert 0 < len(text.encode()) <= 255
    assert not any(c < " " or c == "\x7f" for c in text)
