"""All parameters of Anthropic's requests and all fields of their messages and tools, and what becomes of each. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moa_client.endpoint.fields import refused
from moa_client.endpoint.parameters import Api, Parameter, fields_table, used_fields

MESSAGES: tuple[Api, ...] = ("messages",)
TEXT_ONLY = "models read text only"
_PREFIXES = "Prefixes are found without it."
_THOUGHTS = "What a model thought before an earlier answer; this one does not get it."
_NO_TOOLS = "Tools run where the program runs: nothing is run here."

PARAMETERS = (
    Parameter("model", MESSAGES, "used", "The name that `/v1/models` gives, or `default`; may be absent."),
    Parameter("max_tokens", MESSAGES, "used", "At least 1; may be more than the context allows."),
    Parameter("messages", MESSAGES, "used", "Roles `user`, `assistant`, `system`; the last is not from `assistant`."),
    Parameter("system", MESSAGES, "used", "A text, or blocks of text."),
    Parameter("stream", MESSAGES, "used", "Server-sent events, as the text is committed."),
    Parameter("temperature", MESSAGES, "used", "0 (greedy) or 0.001 to 100; if absent the model's, else 1."),
    Parameter("top_p", MESSAGES, "used", "More than 0, at most 1; if absent the model's, else 1."),
    Parameter("top_k", MESSAGES, "used", "Sample from the k likeliest tokens; 0: all; if absent the model's, else 0."),
    Parameter("stop_sequences", MESSAGES, "used", "Up to 16 texts of 1 to 64 characters."),
    Parameter("tools", MESSAGES, "used", "Up to 128 tools of the program, see below."),
    Parameter("tool_choice", MESSAGES, "used", "`auto`, `any`, `tool`, `none`, each with `disable_parallel_tool_use`."),
    Parameter(
        "thinking",
        MESSAGES,
        "used",
        "`enabled` with `budget_tokens`, `disabled`, or as the model has it; without effect on a model that does not "
        "think. `display: omitted` leaves the blocks of it out.",
    ),
    Parameter(
        "output_config",
        MESSAGES,
        "used",
        "`format`: `json_schema`, which is enforced on what calls no tool; `effort` has no effect.",
    ),
    Parameter(
        "context_management", MESSAGES, "used", "Only `clear_thinking_20251015`, which is what happens in any case."
    ),
    Parameter("seed", MESSAGES, "used", "0 to 2^64 - 1; if absent a random one. An extension, as the next one."),
    Parameter("moa", MESSAGES, "used", "`unverified`: see [extensions](#extensions)."),
    Parameter("metadata", MESSAGES, "ignored", "No abuse is watched for here."),
    Parameter("user_profile_id", MESSAGES, "ignored", "The same."),
    Parameter("workspace_id", MESSAGES, "ignored", "There is one."),
    Parameter("cache_control", MESSAGES, "ignored", _PREFIXES),
    Parameter("diagnostics", MESSAGES, "ignored", "It is about caches that are found otherwise here."),
    Parameter("service_tier", MESSAGES, "ignored", "There is one."),
    Parameter("inference_geo", MESSAGES, "ignored", "The text does not depend on where the server is."),
    Parameter("speed", MESSAGES, "ignored", "There is one."),
    Parameter("output_format", MESSAGES, "refused", "The older form of `output_config.format`: send that."),
    Parameter("prefill", MESSAGES, "refused", "Answers are not continued."),
    Parameter("container", MESSAGES, "refused", _NO_TOOLS),
    Parameter("mcp_servers", MESSAGES, "refused", _NO_TOOLS, ([],)),
    Parameter("compaction", MESSAGES, "refused", "Shorten the conversation yourself."),
    Parameter("thread", MESSAGES, "refused", "Conversations are not kept: send all messages."),
    *(
        Parameter(name, MESSAGES, "refused", "One model answers, and costs nothing.", ([],))
        for name in ("fallbacks", "fallback_credit_token", "billing_policy")
    ),
)

_CACHE = Parameter("cache_control", MESSAGES, "ignored", _PREFIXES)
_TYPE = Parameter("type", MESSAGES, "used", "As Anthropic has it.")
BLOCKS: Mapping[str, tuple[Parameter, ...]] = {
    "text": (
        _TYPE,
        Parameter("text", MESSAGES, "used", "Its text."),
        Parameter("citations", MESSAGES, "ignored", "Where an answer's text came from."),
        _CACHE,
    ),
    "tool_use": (
        _TYPE,
        Parameter("id", MESSAGES, "used", "Of the call."),
        Parameter("name", MESSAGES, "used", "Of the tool."),
        Parameter("input", MESSAGES, "used", "The arguments, an object."),
        *(Parameter(name, MESSAGES, "ignored", "Calls are the program's own.") for name in ("caller", "toolset_name")),
        _CACHE,
    ),
    "tool_result": (
        _TYPE,
        Parameter("tool_use_id", MESSAGES, "used", "The `id` of the call that it answers."),
        Parameter("content", MESSAGES, "used", "A text, or blocks of text."),
        Parameter("is_error", MESSAGES, "used", "true: the model is told so, by `Error:` before the text."),
        Parameter("toolset_name", MESSAGES, "ignored", "Calls are the program's own."),
        _CACHE,
    ),
    "thinking": (
        _TYPE,
        *(Parameter(name, MESSAGES, "ignored", _THOUGHTS) for name in ("thinking", "signature")),
        _CACHE,
    ),
    "redacted_thinking": (_TYPE, Parameter("data", MESSAGES, "ignored", _THOUGHTS)),
}
MESSAGE_FIELDS = (
    Parameter("role", MESSAGES, "used", "`user`, `assistant` or `system`."),
    Parameter("content", MESSAGES, "used", "A text, or a list of blocks."),
)
TOOL_FIELDS = (
    Parameter("type", MESSAGES, "refused", _NO_TOOLS, ("custom",)),
    Parameter("name", MESSAGES, "used", "1 to 128 of the characters a-z, A-Z, 0-9, _ and -."),
    Parameter("description", MESSAGES, "used", "What the model is told of it."),
    Parameter("input_schema", MESSAGES, "used", "Enforced where a call is required, `strict` or not."),
    Parameter("strict", MESSAGES, "ignored", "See `input_schema`."),
    Parameter("eager_input_streaming", MESSAGES, "ignored", "Arguments are sent as they come in any case."),
    _CACHE,
    Parameter("defer_loading", MESSAGES, "refused", "Each tool is told to the model from the beginning.", (False,)),
    Parameter("allowed_callers", MESSAGES, "refused", _NO_TOOLS, (["direct"],)),
    Parameter("input_examples", MESSAGES, "refused", "Write them into the description.", ([],)),
)


def used_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a request that have an effect, at all depths; what has another form is left as it is.

    Raises:
        RequestError: a field is unknown, or would need what there is not.
    """
    used = used_fields(body, _by_name(PARAMETERS))
    if isinstance(messages := used.get("messages"), list):
        used["messages"] = [_used_message(each, f"messages[{number}]") for number, each in enumerate(messages)]
    if "system" in used:
        used["system"] = _used_blocks(used["system"], "system")
    if isinstance(tools := used.get("tools"), list):
        used["tools"] = [
            used_fields(each, _by_name(TOOL_FIELDS), f"tools[{number}].") if isinstance(each, dict) else each
            for number, each in enumerate(tools)
        ]
    return used


def _used_message(message: object, path: str) -> object:
    if not isinstance(message, dict):
        return message
    used = used_fields(message, _by_name(MESSAGE_FIELDS), f"{path}.")
    return used | {"content": _used_blocks(used["content"], f"{path}.content")} if "content" in used else used


def _used_blocks(content: object, path: str) -> object:
    """Content as blocks."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        return content
    return [_used_block(block, f"{path}[{number}]") for number, block in enumerate(content)]


def _used_block(block: object, path: str) -> object:
    if not isinstance(block, dict):
        return block
    kind = block.get("type")
    if not isinstance(kind, str) or kind not in BLOCKS:
        raise refused(path, f"a block of type {str(kind)[:40]!r} cannot be used: {TEXT_ONLY}")
    used = used_fields(block, _by_name(BLOCKS[kind]), f"{path}.")
    return used | {"content": _used_blocks(used["content"], f"{path}.content")} if "content" in used else used


def _by_name(fields: tuple[Parameter, ...]) -> dict[str, Parameter]:
    return {field.name: field for field in fields}


def messages_table() -> str:
    """All parameters as a Markdown table."""
    return fields_table(PARAMETERS)


def tools_table() -> str:
    """All fields of a tool as a Markdown table."""
    return fields_table(TOOL_FIELDS)
