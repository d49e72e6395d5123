"""Compared with Python's reader of JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_client.tools.reading.json_scanner import MOST_DEPTH, JsonScanner, Mismatch, Scan, is_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def python_reads(text: str) -> bool:
    def refuse(_: str) -> None:
        raise ValueError

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError:
        return False
    return True


@given(VALUES, st.sampled_from([None, 0, 2]), st.booleans())
def test_all_json_is_read(value: object, indent: int | None, ascii_only: bool) -> None:
    assert is_json(json.dumps(value, indent=indent, ensure_ascii=ascii_only))


@given(VALUES, st.data())
def test_what_python_refuses_is_refused(value: object, data: st.DataObject) -> None:
    text = json.dumps(value)
    at = data.draw(st.integers(0, len(text)))
    changed = text[:at] + data.draw(st.text('{}[]",:\\0123.eE+-tnu \n', max_size=2)) + text[at + 1 :]
    assert is_json(changed) == python_reads(changed)


@given(st.text('{}[]",:\\01.eE+-tru ', max_size=8))
def test_any_text_is_judged_as_python_does(text: str) -> None:
    assert is_json(text) == python_reads(text)


def test_where_a_value_ends() -> None:
    scanner = JsonScanner()
    assert [scanner.push(char) for char in ' {"a": 1}'][-2:] == [Scan.MORE, Scan.WHOLE]
    scanner = JsonScanner()
    assert [scanner.push(char) for char in "12,"] == [Scan.MORE, Scan.MORE, Scan.PAST]


def test_brackets_may_not_be_nested_too_deeply() -> None:
    assert is_json("[" * MOST_DEPTH + "]" * MOST_DEPTH)
    assert not is_json("[" * (MOST_DEPTH + 1) + "]" * (MOST_DEPTH + 1))


def test_no_value_goes_on_after_a_mistake() -> None:
    scanner = JsonScanner()
    with pytest.raises(Mismatch):
        scanner.push("}")
