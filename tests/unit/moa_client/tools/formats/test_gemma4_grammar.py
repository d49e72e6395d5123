"""What of a schema cannot be enforced in Gemma 4's notation."""

from __future__ import annotations

from typing import Any

import pytest
from inline_snapshot import snapshot
from moa_client.tools.formats.gemma4_grammar import value_grammar
from moa_client.tools.formats.grammar import Grammar
from moa_shared.errors import ConfigError

from tests.support.messages import raises


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (
            {"type": "string", "maxLength": 3},
            snapshot(
                "The schema of f.x uses maxLength, which cannot be enforced in this model's form of calls. Change it, or do not require a call."
            ),
        ),
        (
            {},
            snapshot(
                "The schema of f.x allows any value, which cannot be enforced in this model's form of calls. Change it, or do not require a call."
            ),
        ),
        (
            {"type": "array", "items": {"$ref": "#/$defs/a"}},
            snapshot(
                "The schema of f.x[] uses $ref, which cannot be enforced in this model's form of calls. Change it, or do not require a call."
            ),
        ),
    ],
)
def test_what_cannot_be_enforced_is_refused(schema: dict[str, Any], message: str) -> None:
    with raises(ConfigError, message):
        value_grammar("f", {"type": "object", "properties": {"x": schema}}, Grammar({}))
