from __future__ import annotations

import json

import pytest
from inline_snapshot import snapshot
from moa_shared.errors import ConfigError
from moa_shared.sampling.constraint import MOST_BYTES, Constraint, ConstraintKind, choice_of

from tests.support.messages import raises


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (ConstraintKind.JSON_SCHEMA, "", snapshot("The JSON schema has no text. See --help for the values allowed.")),
        (
            ConstraintKind.JSON_SCHEMA,
            "{",
            snapshot(
                "The JSON schema is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1). See --help for the values allowed."
            ),
        ),
        (
            ConstraintKind.JSON_SCHEMA,
            "[]",
            snapshot("The JSON schema is not a JSON object. See --help for the values allowed."),
        ),
        pytest.param(
            ConstraintKind.JSON_SCHEMA,
            "[" * 100_000,
            snapshot(
                "The JSON schema is not JSON: maximum recursion depth exceeded while decoding a JSON array from a unicode string. See --help for the values allowed."
            ),
            id="deep",
        ),
        (
            ConstraintKind.JSON_OBJECT,
            "{}",
            snapshot("The JSON object has a text, expected none. See --help for the values allowed."),
        ),
        (
            ConstraintKind.CHOICE,
            "[]",
            snapshot("The choice is of 0 texts, expected 1 to 1000. See --help for the values allowed."),
        ),
        (
            ConstraintKind.CHOICE,
            '["a", 1]',
            snapshot(
                "The choice is not an array of texts, each of one character or more. See --help for the values allowed."
            ),
        ),
        pytest.param(
            ConstraintKind.REGEX,
            "x" * (MOST_BYTES + 1),
            snapshot(
                "The regular expression has 262,145 bytes, at most 262,144 are allowed. See --help for the values allowed."
            ),
            id="long",
        ),
    ],
)
def test_what_is_no_constraint_is_refused(kind: ConstraintKind, text: str, message: str) -> None:
    with raises(ConfigError, message):
        Constraint(kind, text)


def test_a_choice_keeps_its_texts() -> None:
    assert choice_of(["a", "né|"]).choices == ("a", "né|")


def test_a_text_is_parsed_once_however_often_its_constraint_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed, loads = list[str](), json.loads

    def parse(text: str) -> object:
        parsed.append(text)
        return loads(text)

    monkeypatch.setattr("moa_shared.sampling.constraint.json.loads", parse)
    schema = '{"type": "object", "title": "once"}'
    for text in (schema, schema[:9] + schema[9:], schema):
        Constraint(ConstraintKind.JSON_SCHEMA, text)
    assert parsed == [schema]
