"""Schemas of the public test suite, and forms that are too large, contradict themselves, or explode."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from moa_shared.constraints.constrained_text import ConstrainedText
from moa_shared.errors import ConfigError
from moa_shared.sampling.settings import Constraint, ConstraintKind
from moa_shared.sandbox.child import constraint_child
from moa_shared.tree import DraftTree

from tests.support.byte_vocabulary import END, begin
from tests.support.messages import says

# By keyword: a schema, values that are valid, and values that are not. Without schemas of other servers and those of
# keywords that are refused (`unevaluated...`, `$dynamic...`).
SUITE: dict[str, list[tuple[Any, list[Any], list[Any]]]] = json.loads(
    (Path(__file__).parent / "json_schema_suite.json").read_text()
)
NO_TREE = DraftTree((), ())
REFUSED = (
    "uses ",
    "cannot be enforced: ",
    "cannot be enforced exactly",
    "has a oneOf whose forms overlap",
    "allows no text at all",
)


def holds(form: ConstrainedText, value: Any) -> bool:
    """Whether a value is a whole answer."""
    text = form.copy()
    try:
        text.advance(list(json.dumps(value, ensure_ascii=False).encode()))
    except ConfigError:
        return False
    return bool(text.allowed(NO_TREE)[0][END])


@pytest.mark.parametrize("keyword", SUITE)
def test_no_schema_of_the_public_suite_is_loosened(keyword: str) -> None:
    for schema, valid, invalid in SUITE[keyword]:
        try:
            form = begin(Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(schema)))
        except ConfigError as refusal:
            if not any(words in refusal.message for words in REFUSED):
                pytest.fail(refusal.message)
            continue
        assert not [value for value in invalid if holds(form, value)], schema
        # Formats are enforced here, and keys come in the schema's order, numbers without an empty fraction.
        if keyword not in ("format", "vocabulary"):
            assert not [value for value in valid if not holds(form, _tidy(value, schema))], schema


def _tidy(value: Any, schema: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_tidy(each, schema) for each in value]
    if isinstance(value, dict):
        text = json.dumps(schema)
        return {
            key: _tidy(value[key], schema) for key in sorted(value, key=lambda key: text.find(f'"{key}"') % (1 << 30))
        }
    return value


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        pytest.param(
            ConstraintKind.JSON_SCHEMA,
            json.dumps({"enum": ["x" * 1000] * 1000}),
            "The JSON schema has 1,004,010 bytes, at most 262,144 are allowed",
            id="a megabyte",
        ),
        pytest.param(
            ConstraintKind.JSON_SCHEMA,
            '{"items":' * 900 + "{}" + "}" * 900,
            "The JSON schema cannot be enforced: recursion limit exceeded at line 1 column",
            id="900 levels",
        ),
        (ConstraintKind.JSON_SCHEMA, '{"$ref": "#"}', "The JSON schema allows no text at all"),
        (
            ConstraintKind.JSON_SCHEMA,
            '{"allOf": [{"type": "string"}, {"type": "integer"}]}',
            "The JSON schema cannot be enforced: Unsatisfiable schema: incompatible types",
        ),
        (
            ConstraintKind.JSON_SCHEMA,
            '{"type": "string", "minLength": 5, "maxLength": 3}',
            "The JSON schema cannot be enforced: Unsatisfiable schema: minLength (5) is",
        ),
        (ConstraintKind.LARK, "start: start", "The Lark grammar allows no text at all"),
        (ConstraintKind.LARK, "start: A\nA: /a/ & /b/", "The Lark grammar allows no text at all"),
    ],
)
def test_what_no_answer_can_be_is_refused_before_the_first_token(kind: ConstraintKind, text: str, message: str) -> None:
    with says(ConfigError, message):
        _tried(kind, text)


def _tried(kind: ConstraintKind, text: str) -> None:
    from moa_shared.constraints.grammar import refusal
    from moa_shared.sandbox.child import ChildError

    try:
        constraint_child().try_constraint(Constraint(kind, text))
    except ChildError as error:
        raise refusal(kind, str(error)) from None


def written(form: ConstrainedText, letters: Sequence[int], most: int) -> None:
    """An answer of these letters, again and again."""
    for number in range(most):
        form.allowed(NO_TREE)
        form.advance([letters[number % len(letters)]])


@pytest.mark.parametrize(
    ("kind", "text", "letters", "message"),
    [
        (
            ConstraintKind.JSON_SCHEMA,
            '{"properties": {"a": {"$ref": "#"}}, "type": "object", "required": ["a"], "additionalProperties": false}',
            b'{"a": ',
            "The JSON schema leads too far at one place of the answer",
        ),
        (
            ConstraintKind.REGEX,
            "(a{1,1000}){1,1000}",
            b"a",
            "The regular expression cannot be enforced: lexer error: too many expressions",
        ),
        (
            ConstraintKind.LARK,
            'start: e\ne: "a" | e e | e e e',
            b"a",
            "The Lark grammar leads too far at one place of the answer",
        ),
    ],
)
def test_what_explodes_in_the_answer_ends_it_in_words(
    kind: ConstraintKind, text: str, letters: bytes, message: str
) -> None:
    with says(ConfigError, message):
        written(begin(Constraint(kind, text)), letters, 500)


@pytest.mark.parametrize("text", ["(a|b)*a(a|b){40}", "(x+x+)+y", "(.*a){1000}"])
def test_expressions_that_explode_elsewhere_do_not_here(text: str) -> None:
    form = begin(Constraint(ConstraintKind.REGEX, text))
    letter = int(np.flatnonzero(form.allowed(NO_TREE)[0])[0])
    written(form, [letter], 200)
