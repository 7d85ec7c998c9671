"""Reading what somebody else wrote: one error for everything that no writer of ours makes."""

from __future__ import annotations

import json

import pytest

from trainer.base.strict_json import MOST_DEPTH, Unsound, instant, read_object


def fields(**values: object):
    return read_object(json.dumps(values).encode(), most_bytes=10_000, name="it")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"{" + b" " * 10_000 + b"}", "more than 10,000 bytes"),
        (b"\xff\xfe{\x00}\x00", "not JSON"),
        (b"[" * 9_000, "not JSON"),
        (b"[]", "not an object"),
        (b'{"a": NaN}', "NaN is not a number"),
        (b'{"a": 1e999}', "the number inf"),
        (b'{"a": 1' + b"0" * 30 + b"}", "31 digits"),
        (b'{"a": 1' + b"0" * 5000 + b"}", "not JSON"),
        (b'{"a": "\\ud800"}', "not Unicode"),
        (b'{"a": ' + b"[" * MOST_DEPTH + b"]" * MOST_DEPTH + b"}", "levels deep"),
    ],
    ids=["large", "utf-16", "brackets", "list", "nan", "infinite", "long", "longer", "surrogate", "deep"],
)
def test_a_document_that_is_none_of_ours_is_one_error(body, why):
    with pytest.raises(Unsound, match=why):
        read_object(body, most_bytes=10_000, name="it")


@pytest.mark.parametrize(
    "read",
    [
        lambda f: f.text("number"),
        lambda f: f.text("missing"),
        lambda f: f.text("long"),
        lambda f: f.text("text", pattern="[a-z]{3}"),
        lambda f: f.choice("text", ("a", "b")),
        lambda f: f.whole("half"),
        lambda f: f.whole("truth"),
        lambda f: f.whole("number", most=6),
        lambda f: f.whole("number", least=8),
        lambda f: f.number("truth"),
        lambda f: f.number("number", most=6.5),
        lambda f: f.truth("number"),
        lambda f: f.instant("text"),
        lambda f: f.table("list"),
        lambda f: f.table("table", most=1),
        lambda f: list(f.rows("list", most=1)),
        lambda f: list(f.rows("list", most=9)),
        lambda f: list(f.tables("table", most=9)),
    ],
)
def test_a_field_of_another_type_or_out_of_range_is_one_error(read):
    nested = {"list": [{}, 5], "table": {"a": {}, "b": 5}}
    values = fields(number=7, half=0.5, truth=True, text="word", long="x" * 256, **nested)
    with pytest.raises(Unsound, match="^it"):
        read(values)


def test_a_piece_of_a_long_name_is_read():
    """A symbol of 200 characters, with its fold and its seed."""
    title = "x" * 200 + " fold 12 seed 1234567890"
    read = fields(progress={title: {"step": 1}})
    assert [name for name, _ in read.tables("progress", most=9)] == [title]


NOT_INSTANTS = ("", "2026-11-20T12:00:00", "1999-12-31T00:00:00Z", "9999-12-31T23:59:59-10:00")


@pytest.mark.parametrize("text", NOT_INSTANTS)
def test_an_instant_has_a_zone_and_a_sane_year(text):
    with pytest.raises(Unsound):
        instant(text)


def test_a_document_of_too_many_values_is_not_parsed() -> None:
    body = b'{"a": [[], [], {}]}'
    read = read_object(body, most_bytes=99, most_values=7, name="it")
    assert read.values == {"a": [[], [], {}]}
    with pytest.raises(Unsound, match="it has more than 6 values"):
        read_object(body, most_bytes=99, most_values=6, name="it")
