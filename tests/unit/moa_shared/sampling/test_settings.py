"""Settings of sampling: constraints and defaults."""

from typing import Any

import pytest
from moa_shared.errors import ConfigError
from moa_shared.sampling.settings import MOST_BYTES, Constraint, ConstraintKind, SamplingDefaults, sampling_defaults


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (ConstraintKind.JSON_SCHEMA, "", "The JSON schema has no text"),
        (ConstraintKind.JSON_SCHEMA, "{", "The JSON schema is not JSON: Expecting property name enclosed in"),
        (ConstraintKind.JSON_SCHEMA, "[]", "The JSON schema is not a JSON object"),
        (ConstraintKind.JSON_SCHEMA, "[" * 100_000, "The JSON schema is not JSON: maximum recursion depth exceeded"),
        (ConstraintKind.JSON_OBJECT, "{}", "The JSON object has a text, expected none"),
        (ConstraintKind.CHOICE, "[]", "The choice is of 0 texts, expected 1 to 1000"),
        (ConstraintKind.CHOICE, '["a", 1]', "The choice is not an array of texts, each of one character or more"),
        (ConstraintKind.REGEX, "x" * (MOST_BYTES + 1), "The regular expression has 262,145 bytes, at most 262,144 are"),
    ],
    ids=lambda each: str(each)[:30],
)
def test_what_is_no_constraint_is_refused(kind: ConstraintKind, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Constraint(kind, text)


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        ({}, {}),
        ({"_from_model_config": True, "eos_token_id": 2, "transformers_version": "4.42.3"}, {}),
        ({"do_sample": True, "temperature": 0.6, "top_p": 0.9}, {"temperature": 0.6, "top_p": 0.9}),
        ({"temperature": 1, "top_k": 20.0, "min_p": None}, {"temperature": 1.0, "top_k": 20}),
        ({"top_k": -1}, {"top_k": 0}),
        ({"repetition_penalty": 1.05}, {"repeat_penalty": 1.05, "repeat_last_n": -1}),
        ({"repetition_penalty": 1.1, "repeat_last_n": 64}, {"repeat_penalty": 1.1, "repeat_last_n": 64}),
        ({"do_sample": False, "temperature": 0.6}, {"temperature": 0.0}),
    ],
)
def test_what_a_model_says_about_sampling(generation: dict[str, Any], expected: dict[str, Any]) -> None:
    assert sampling_defaults(generation) == SamplingDefaults(**expected)
    assert sampling_defaults(generation).said() == expected


@pytest.mark.parametrize(
    ("generation", "words"),
    [
        ({"temperature": "warm"}, "temperature is 'warm', expected a number"),
        ({"temperature": True}, "temperature is True, expected a number"),
        ({"top_k": 1.5}, "top_k is 1.5, expected a whole number"),
        ({"top_p": 0}, "top_p is 0.0, expected more than 0"),
        ({"repetition_penalty": 0}, "repeat_penalty is 0.0, expected 0.01 to 100"),
        ({"do_sample": "no"}, "do_sample is 'no', expected true or false"),
    ],
)
def test_values_that_cannot_be_used(generation: dict[str, Any], words: str) -> None:
    with pytest.raises((ConfigError, ValueError), match=words):
        sampling_defaults(generation)
