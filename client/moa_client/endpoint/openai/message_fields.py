"""All fields of a chat's messages, and what becomes of each, as `parameters` has it for a request's parameters. What
programs send back with an answer that they got, or keep beside a message for themselves, is let pass. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moa_client.endpoint.openai.parameters import CHAT
from moa_client.endpoint.parameters import Parameter, fields_table, used_fields
from moa_client.web.error_form import RequestError

_OTHER_NAME = "The same in other programs' form, which is not read."
_NOTES = ("id", "type", "status", "metadata", "created_at", "timestamp", "parsed", "provider_specific_fields")
FIELDS = (
    Parameter("role", CHAT, "used", "`system`, `developer`, `user`, `assistant` or `tool`."),
    Parameter(
        "content",
        CHAT,
        "used",
        "A text, or a list of parts of the types `text` and `refusal`; of `assistant` it may be null or absent.",
    ),
    Parameter(
        "name",
        CHAT,
        "used",
        "Of `user` and `assistant`: given to the chat template, which may leave it out; of `tool` the call's is.",
    ),
    Parameter("refusal", CHAT, "used", "Of `assistant`: text, after that of `content`."),
    Parameter("tool_calls", CHAT, "used", "Of `assistant`: its calls, as they were received."),
    Parameter("tool_call_id", CHAT, "used", "Of `tool`: the `id` of the call that it answers."),
    Parameter(
        "reasoning_content",
        CHAT,
        "used",
        "Of `assistant`: its reasoning, as it was received; the chat template says of which answers the model sees it.",
    ),
    *(Parameter(name, CHAT, "ignored", _OTHER_NAME) for name in ("reasoning", "reasoning_details")),
    Parameter("annotations", CHAT, "ignored", "Where an answer's text came from."),
    Parameter("cache_control", CHAT, "ignored", "Prefixes are found without it."),
    *(Parameter(name, CHAT, "ignored", "The program's own note.") for name in _NOTES),
    Parameter("function_call", CHAT, "refused", "The older form of `tool_calls`: send these."),
    Parameter("audio", CHAT, "refused", "Models read text only."),
    Parameter("images", CHAT, "refused", "Models read text only.", ([],)),
    *(Parameter(name, CHAT, "refused", "Answers are not continued.", (False,)) for name in ("prefix", "partial")),
)
PART_FIELDS = (
    Parameter("type", CHAT, "used", "`text` or `refusal`."),
    Parameter("text", CHAT, "used", "Of `text`."),
    Parameter("refusal", CHAT, "used", "Of `refusal`: text too."),
    *(each for each in FIELDS if each.name in ("annotations", "cache_control", "id", "metadata")),
)
_BY_NAME = {field.name: field for field in FIELDS}
_PART_BY_NAME = {field.name: field for field in PART_FIELDS}
_WITH_CONTENT = ("system", "developer", "user", "tool")


def used_messages(messages: object) -> object:
    """The messages of a request with the fields that have an effect; what has another form is left as it is.

    Raises:
        RequestError: a field is unknown, or would need what there is not.
    """
    if not isinstance(messages, list):
        return messages
    return [_used_message(each, f"messages[{number}]") for number, each in enumerate(messages)]


def _used_message(message: object, path: str) -> object:
    if not isinstance(message, dict):
        return message
    used = used_fields(message, _BY_NAME, f"{path}.")
    if used.get("role") in _WITH_CONTENT and used.get("content", []) == []:
        param = f"{path}.content"
        raise RequestError(400, f"{param} is missing.", param=param, code="missing_required_parameter")
    parts = used.get("content", [])
    if isinstance(parts, list):
        parts = [_used_part(part, f"{path}.content[{number}]") for number, part in enumerate(parts)]
    return {**used, "content": parts}


def _used_part(part: object, path: str) -> object:
    if not isinstance(part, dict) or part.get("type") not in ("text", "refusal"):
        return part
    return _as_text(used_fields(part, _PART_BY_NAME, f"{path}."))


def _as_text(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """A part of either type as one of type text."""
    if part["type"] == "text" or "refusal" not in part:
        return part
    return {"type": "text", "text": part["refusal"]}


def message_fields_table() -> str:
    """All fields of messages as a Markdown table."""
    return fields_table(FIELDS)
