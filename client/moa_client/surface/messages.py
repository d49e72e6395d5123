"""The JSON messages between the daemon and its surfaces: one object a line on the socket, one a message on the page.

Pure. docs/device.md describes them; `surface/update_codec.py` makes those that are updates.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from moa_shared.errors import ConfigError, DataError, MoaError
from moa_shared.protocol.finish_rule import Finish
from moa_shared.text.json_text import parse_json, parse_request

from moa_client.conversation.answer_figures import LinkStatus
from moa_client.conversation.answer_options import AnswerOptions, options_from
from moa_client.conversation.answer_text import AnswerText
from moa_client.surface.open_conversation import ConversationFacts
from moa_client.surface.update_codec import Fields, runs_fields, status_fields, status_of
from moa_client.tools.answer_split import marks_from
from moa_client.tools.effort import EFFORTS

LEFT_OPEN = tuple(name for name, each in AnswerOptions.__dataclass_fields__.items() if each.default is None)
WHOLE = ("top_k", "seed", "max_tokens", "repeat_last_n")
MOST_QUESTION_BYTES = 1 << 20  # of a message from a surface
MOST_SHOWN = 60  # characters of a value in an error


def encode_line(fields: Mapping[str, Any]) -> bytes:
    """One message as a line."""
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
    fields = asdict(facts)
    fields["conversation"] = fields.pop("identifier")
    return {
        "event": "opened",
        **fields,
        "status": status_fields(status),
        "answers": [
            _answer_fields(answer) | ({"runs": runs_fields(answer.runs)} if with_runs else {}) for answer in answers
        ],
    }


def facts_of(fields: Mapping[str, Any]) -> ConversationFacts:
    """The facts in an `opened` message."""
    names = [name for name in ConversationFacts.__dataclass_fields__ if name not in ("identifier", "thinking")]
    values = {name: fields[name] for name in names}
    return ConversationFacts(fields["conversation"], **values, thinking=marks_from(fields["thinking"]))


def opened_status_of(fields: Mapping[str, Any]) -> LinkStatus:
    """The status in an `opened` message."""
    return status_of(fields["status"])


def answers_of(fields: Mapping[str, Any]) -> list[AnswerText]:
    """The answers in an `opened` message."""
    return [_answer_of(answer) for answer in fields["answers"]]


def _answer_fields(answer: AnswerText) -> Fields:
    return {
        "number": answer.number,
        "question": answer.question,
        "committed": answer.committed,
        "provisional": answer.provisional,
        "likely": answer.likely,
        "withdrawn": answer.withdrawn,
        "tokens": answer.tokens,
        "decided": answer.decided,
        "waiting": answer.waiting,
        "ended": answer.ended,
        "finish": answer.finish.name.lower(),
        "running": answer.is_running,
        "unsettled": answer.is_unsettled,
        "options": answer.options.fields(),
        "versions": answer.versions,
    }


def _answer_of(fields: Mapping[str, Any]) -> AnswerText:
    return AnswerText(
        fields["question"],
        fields["number"],
        options_from(fields["options"]),
        Finish[fields["finish"].upper()],
        fields["committed"],
        fields["provisional"],
        fields["likely"],
        fields["withdrawn"],
        fields["ended"],
        fields["tokens"],
        fields["decided"],
        tuple(fields["waiting"]),
        is_running=fields["running"],
        is_unsettled=fields["unsettled"],
        versions=tuple((question, text) for question, text in fields["versions"]),
    )


def options_of(fields: Mapping[str, Any]) -> AnswerOptions:
    """The options in an `ask` message."""
    for name, value in fields.items():
        if name not in AnswerOptions.__dataclass_fields__:
            raise ConfigError(f"There is no option {shortened(name)} of an answer.", hint="docs/device.md lists them.")
        if not _may_be(name, value):
            raise _wrong_option(name, value)
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


def _wrong_option(name: str, value: object) -> ConfigError:
    return ConfigError(f"The option {name} cannot be {shortened(value)}.", hint="docs/device.md lists them.")


def shortened(value: object) -> str:
    """The beginning of a value that was sent, for an error."""
    shown = repr(value)
    return shown if len(shown) <= MOST_SHOWN else f"{shown[:MOST_SHOWN]}..."


def error_fields(error: MoaError) -> Fields:
    """The message that a request was refused."""
    return {"event": "error", "code": error.code, "message": error.message, "hint": error.hint}
