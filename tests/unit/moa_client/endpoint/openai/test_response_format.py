from __future__ import annotations

from typing import Any

import pytest
from inline_snapshot import snapshot
from moa_client.conversation.answer_options import AnswerOptions, options_from
from moa_client.endpoint.openai.requests import chat_request, text_request
from moa_client.web.error_form import RequestError
from moa_shared.sampling.constraint import Constraint, ConstraintKind, choice_of

HI = {"messages": [{"role": "user", "content": "Hi"}]}
SCHEMA = {"type": "object", "properties": {"é": {"type": "integer"}}}
SCHEMA_TEXT = '{"type": "object", "properties": {"é": {"type": "integer"}}}'


def constraint_of(given: dict[str, Any]) -> Constraint | None:
    constraint = chat_request(HI | given).options().constraint
    assert text_request({"prompt": "Hi"} | given).options().constraint == constraint
    return constraint


@pytest.mark.parametrize(
    ("given", "constraint"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Constraint(ConstraintKind.JSON_OBJECT)),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": SCHEMA, "strict": True},
                }
            },
            Constraint(ConstraintKind.JSON_SCHEMA, SCHEMA_TEXT),
        ),
        ({"structured_outputs": {"json": SCHEMA}}, Constraint(ConstraintKind.JSON_SCHEMA, SCHEMA_TEXT)),
        ({"structured_outputs": {"json": SCHEMA_TEXT}}, Constraint(ConstraintKind.JSON_SCHEMA, SCHEMA_TEXT)),
        ({"structured_outputs": {"regex": "a+"}}, Constraint(ConstraintKind.REGEX, "a+")),
        ({"structured_outputs": {"choice": ["a", "b"]}}, choice_of(["a", "b"])),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, Constraint(ConstraintKind.LARK, 'start: "a"')),
    ],
)
def test_the_form_that_is_asked_for(given: dict[str, Any], constraint: Constraint | None) -> None:
    assert constraint_of(given) == constraint


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"response_format": {"type": "xml"}},
            snapshot(
                "response_format.type | response_format.type is 'xml', which is not supported. What there is: text, json_object, json_schema."
            ),
        ),
        (
            {"response_format": {"type": "json_schema"}},
            snapshot("response_format.json_schema | response_format.json_schema is missing."),
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            snapshot("response_format.json_schema.schema | response_format.json_schema.schema is missing."),
        ),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
            snapshot("structured_outputs | structured_outputs: give either it or response_format."),
        ),
        (
            {"structured_outputs": {}},
            snapshot("structured_outputs | Exactly one of json, regex, choice and grammar is expected, 0 were given."),
        ),
        (
            {"structured_outputs": {"regex": "a", "choice": ["a"]}},
            snapshot("structured_outputs | Exactly one of json, regex, choice and grammar is expected, 2 were given."),
        ),
        (
            {"structured_outputs": {"choice": []}},
            snapshot("structured_outputs | The choice is of 0 texts, expected 1 to 1000."),
        ),
        (
            {"structured_outputs": {"json": "{"}},
            snapshot(
                "structured_outputs | The JSON schema is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)."
            ),
        ),
        (
            {"structured_outputs": {"structural_tag": "x"}},
            snapshot("structured_outputs | Exactly one of json, regex, choice and grammar is expected, 0 were given."),
        ),
    ],
)
def test_what_is_no_form_is_refused_with_its_parameter(given: dict[str, Any], message: object) -> None:
    with pytest.raises(RequestError) as caught:
        chat_request(HI | given).options()
    assert f"{caught.value.param} | {caught.value}" == message


def test_a_constraint_is_kept_with_the_options_of_its_answer() -> None:
    options = AnswerOptions(constraint=Constraint(ConstraintKind.JSON_SCHEMA, SCHEMA_TEXT)).decided()
    assert options_from(options.fields()) == options
    assert options_from(AnswerOptions().fields()).constraint is None
