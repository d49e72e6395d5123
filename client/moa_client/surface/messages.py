"""The JSON messages between the daemon and its surfaces: one object a line on the socket, one a message on the page.

Pure. docs/device.md describes them; `surface/update_codec.py` makes those that are updates.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from moa_shared.errors import ConfigError, DataError, MoaError
from moa_shared.text.json_text import parse_json, parse_request

from moa_client.conversation.answer_figures import LinkStatus
from moa_client.conversation.answer_options import AnswerOptions, options_from
from moa_client.conversation.answer_text import AnswerText
from moa_client.surface.open_conversation import ConversationFacts
from moa_client.surface.update_codec import Fields, object_of, runs_fields
from moa_client.tools.effort import EFFORTS

LEFT_OPEN = tuple(name for name, each in AnswerOptions.__dataclass_fields__.items() if each.default is None)
WHOLE = ("top_k", "seed", "max_tokens", "repeat_last_n")
MOST_QUESTION_BYTES = 1 << 20  # of a message from a surface
MOST_SHOWN = 60  # characters of a value in an error


def encode_line(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def decode_request(line: bytes | str) -> Fields:
    """The message of a line from a surface, all of whose strings are text."""
    return _object_of(parse_request, line)


def decode_line(line: bytes | str) -> Fields:
    """The message of a line from the daemon, which may name files by what is no text."""
    return _object_of(parse_json, line)


def _object_of(parse: Callable[[bytes | str], Any], line: bytes | str) -> Fields:
    try:
        fields = parse(line)
    except ValueError as error:
        raise DataError(f"The message cannot be read: {error}.", hint="docs/device.md has the messages.") from None
    if not isinstance(fields, dict):
        raise DataError("Expected a JSON object, got another value.", hint="docs/device.md has the messages.")
    return fields


def opened_fields(
    facts: ConversationFacts, status: LinkStatus, answers: Sequence[AnswerText], *, with_runs: bool = False
) -> Fields:
    """The message that a conversation is open.

    Args:
        with_runs: also who wrote committed text.
    """
    return {
        "event": "opened",
        **object_of(facts),
        "status": object_of(status),
        "answers": [
            object_of(answer) | ({"runs": runs_fields(answer.runs)} if with_runs else {}) for answer in answers
        ],
    }


def options_of(fields: Mapping[str, Any]) -> AnswerOptions:
    """The options in an `ask` message."""
    for name, value in fields.items():
        if name not in AnswerOptions.__dataclass_fields__:
            raise ConfigError(f"There is no option {shortened(name)} of an answer.", hint="docs/device.md lists them.")
        if not _may_be(name, value):
            raise ConfigError(f"The option {name} cannot be {shortened(value)}.", hint="docs/device.md lists them.")
    return options_from(fields)


def _may_be(name: str, value: object) -> bool:
    """Whether an option can be of such a value's type; None leaves it open."""
    if value is None:
        return name in LEFT_OPEN
    if name == "loop_guard":
        return isinstance(value, bool)
    if name == "reasoning_effort":
        return value in EFFORTS
    if name == "thinking_budget":
        return isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if name == "stop":
        return isinstance(value, list) and all(isinstance(stop, str) for stop in value)
    if name == "chances":
        return isinstance(value, dict)
    if name == "logit_bias":
        return isinstance(value, dict) and all(_is_number(bias) for bias in value.values())
    return _is_number(value) and (name not in WHOLE or isinstance(value, int))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def shortened(value: object) -> str:
    """The beginning of a value that was sent, for an error."""
    shown = repr(value)
    return shown if len(shown) <= MOST_SHOWN else f"{shown[:MOST_SHOWN]}..."


def error_fields(error: MoaError) -> Fields:
    return {"event": "error", "code": error.code, "message": error.message, "hint": error.hint}
