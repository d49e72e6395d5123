"""What is no text: halves of surrogate pairs, wherever they come from."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot
from moa_shared.text.json_text import parse_request
from moa_shared.text.plain_text import is_text, marked_text

from tests.support.messages import raises

ANY = st.text(st.characters(codec=None))  # halves too


@given(ANY)
def test_what_is_text_can_be_written(string: str) -> None:
    try:
        string.encode()
    except UnicodeEncodeError:
        assert not is_text(string)
    else:
        assert is_text(string)
    marked = marked_text(string)
    assert is_text(marked)
    assert len(marked) == len(string)
    assert (marked == string) is is_text(string)


def test_bytes_that_are_not_utf8_are_marked() -> None:
    assert marked_text(b"caf\xe9 \xf0\x9f\x98\x80".decode(errors="surrogateescape")) == "caf\ufffd \U0001f600"


@pytest.mark.parametrize(
    ("body", "value"),
    [(r'{"a": ["\ud83d \\"]}', {"a": ["\ufffd \\"]}), (r'{"\udce9": 1}', {"\ufffd": 1}), (b'"\xed\xa0\x80"', "\ufffd")],
    ids=["a value", "a name", "bytes"],
)
def test_requests_hold_text_alone(body: str | bytes, value: object) -> None:
    assert parse_request(body) == value


def test_brackets_that_are_nested_too_deeply_are_refused() -> None:
    with raises(ValueError, snapshot("its brackets are nested too deeply")):
        parse_request("[" * 100_000 + "]" * 100_000)


def test_a_pair_in_escapes_is_one_character() -> None:
    assert parse_request(json.dumps({"a": "\U0001f600"})) == {"a": "\U0001f600"}
