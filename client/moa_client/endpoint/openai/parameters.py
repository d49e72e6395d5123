"""All parameters of OpenAI's requests, and what becomes of each here: used, ignored because nothing depends on it, or
refused unless it says what happens anyway. docs/api.md has this as a table.

Pure. Invariant: no parameter that would change the answer is accepted without an effect.
"""

from __future__ import annotations

import difflib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from moa_client.web.error_form import RequestError

Api = Literal["chat", "completions"]
BOTH: tuple[Api, ...] = ("chat", "completions")
CHAT: tuple[Api, ...] = ("chat",)
TEXT: tuple[Api, ...] = ("completions",)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter.

    Args:
        name: of the field.
        apis: that have it.
        use: what becomes of it.
        words: for the documentation; of one that is refused also for its error.
        harmless: of one that is refused, the values that ask for nothing special; null always is one.
    """

    name: str
    apis: tuple[Api, ...]
    use: Literal["used", "ignored", "refused"]
    words: str
    harmless: tuple[Any, ...] = ()


PARAMETERS = (
    Parameter("model", BOTH, "used", "The name that `/v1/models` gives, or `default`; may be absent."),
    Parameter(
        "messages",
        CHAT,
        "used",
        "Roles `system`, `developer`, `user`, `assistant`, `tool`; text only; the last is not from `assistant`.",
    ),
    Parameter("prompt", TEXT, "used", "One text, or the ids of its tokens."),
    Parameter("stream", BOTH, "used", "Server-sent events, as the text is committed."),
    Parameter("stream_options", BOTH, "used", "`include_usage`; `include_obfuscation` only as false."),
    Parameter(
        "temperature", BOTH, "used", "0 (greedy) or 0.001 to 100; if absent the model's, else 1, as OpenAI has it."
    ),
    Parameter("top_p", BOTH, "used", "More than 0, at most 1; if absent the model's, else 1."),
    Parameter("presence_penalty", BOTH, "used", "-2 to 2, 0 if absent."),
    Parameter("frequency_penalty", BOTH, "used", "-2 to 2, 0 if absent."),
    Parameter("logit_bias", BOTH, "used", "Up to 300 token ids, each with -100 to 100."),
    Parameter(
        "top_k",
        BOTH,
        "used",
        "Sample from the k likeliest tokens; 0: all; if absent the model's, else 0. An extension, as the next four.",
    ),
    Parameter(
        "min_p",
        BOTH,
        "used",
        "0 to 1: leave out tokens less likely than this share of the likeliest one; if absent the model's, else 0.",
    ),
    Parameter("repeat_penalty", BOTH, "used", "0.01 to 100, llama.cpp's; if absent the model's, else 1, which is off."),
    Parameter(
        "repeat_last_n", BOTH, "used", "Tokens that it looks back; 0: none, -1: all; if absent the model's, else 64."
    ),
    Parameter("loop_guard", BOTH, "used", "true if absent: an answer that only repeats itself is ended."),
    Parameter("seed", BOTH, "used", "-2^63 to 2^64 - 1; if absent a random one, which the response has as `moa.seed`."),
    Parameter("max_completion_tokens", CHAT, "used", "At least 1; absent: as the context allows."),
    Parameter("max_tokens", BOTH, "used", "The older name; of a text 16 if absent, as OpenAI has it."),
    Parameter("stop", BOTH, "used", "One text, or up to 16 of them, of 1 to 64 characters."),
    Parameter(
        "response_format",
        BOTH,
        "used",
        "`text`, `json_object`, or `json_schema`, which is enforced, `strict` or not.",
    ),
    Parameter(
        "structured_outputs",
        BOTH,
        "used",
        "One of `json` (a schema), `regex`, `choice` (texts) and `grammar` (Lark's). An extension, vLLM's.",
    ),
    Parameter("tools", CHAT, "used", "Up to 128 functions, see below; not with `response_format`."),
    Parameter("tool_choice", CHAT, "used", "`auto`, `none`, `required`, or a function by its name."),
    Parameter("parallel_tool_calls", CHAT, "used", "true if absent; false: an answer has one call at most."),
    Parameter(
        "reasoning_effort",
        CHAT,
        "used",
        "`none`, `minimal`, `low`, `medium`, `high` or `xhigh`, as far as the model's chat template can ask for it.",
    ),
    Parameter("enable_thinking", CHAT, "used", "Whether the model reasons; not with `reasoning_effort`. Qwen's."),
    Parameter("thinking_token_budget", CHAT, "used", "The most tokens of reasoning, from 0 on. An extension, vLLM's."),
    Parameter("thinking_budget", CHAT, "used", "Qwen's name of it."),
    Parameter(
        "chat_template_kwargs",
        CHAT,
        "used",
        "Up to 4 KiB of further arguments of the chat template, which must know them. An extension, vLLM's.",
    ),
    Parameter("moa", BOTH, "used", "Extensions: see below."),
    Parameter("user", BOTH, "ignored", "No abuse is watched for here."),
    Parameter("safety_identifier", BOTH, "ignored", "The same."),
    Parameter("metadata", BOTH, "ignored", "It belongs to answers that are stored, and none is."),
    Parameter("prompt_cache_key", BOTH, "ignored", "Prefixes are found without it."),
    Parameter("prompt_cache_retention", BOTH, "ignored", "Prefixes are kept as long as there is room."),
    Parameter("prediction", CHAT, "ignored", "The text does not depend on it; drafts come from elsewhere."),
    Parameter("service_tier", BOTH, "ignored", "There is one."),
    Parameter("n", BOTH, "refused", "Each request gets one answer: send several requests.", (1,)),
    Parameter("best_of", TEXT, "refused", "Each request gets one answer: send several requests.", (1,)),
    Parameter("logprobs", BOTH, "refused", "The server gives no probabilities.", (False,)),
    Parameter("top_logprobs", CHAT, "refused", "The server gives no probabilities."),
    Parameter(
        "echo", TEXT, "refused", "The answer does not repeat the prompt: put it before the answer yourself.", (False,)
    ),
    Parameter("suffix", TEXT, "refused", "Texts are only continued at their end.", ("",)),
    Parameter("functions", CHAT, "refused", "The older form of `tools`: send these.", ([],)),
    Parameter("function_call", CHAT, "refused", "The older form of `tool_choice`: send that.", ("none", "auto")),
    Parameter("web_search_options", CHAT, "refused", "Nothing is searched here."),
    Parameter("modalities", CHAT, "refused", "Answers are text.", (["text"],)),
    Parameter("audio", CHAT, "refused", "Answers are text."),
    Parameter("verbosity", CHAT, "refused", "Models answer as their chat template has it.", ("medium",)),
    Parameter("store", CHAT, "refused", "Answers are not stored.", (False,)),
)
_BY_NAME: dict[Api, dict[str, Parameter]] = {
    api: {parameter.name: parameter for parameter in PARAMETERS if api in parameter.apis} for api in BOTH
}
_USES = {"used": "used", "ignored": "accepted, without effect"}


def used_parameters(body: Mapping[str, Any], api: Api) -> dict[str, Any]:
    """The parameters of a request that have an effect.

    Raises:
        RequestError: one is unknown, or would need what there is not.
    """
    return used_fields(body, _BY_NAME[api])


def used_fields(given: Mapping[str, Any], known: Mapping[str, Parameter], path: str = "") -> dict[str, Any]:
    """The fields of a JSON object that have an effect; null counts as absent.

    Args:
        known: all that there are, by name.
        path: of the object, before the names in errors, such as "messages[0].".

    Raises:
        RequestError: one is unknown, or would need what there is not.
    """
    used = {}
    for name, value in given.items():
        param = f"{path}{name[:64]}"
        parameter = known.get(name)
        if parameter is None:
            raise RequestError(400, _unknown(name, param, known), param=param, code="unknown_parameter")
        if value is None:
            continue
        if parameter.use == "used":
            used[name] = value
        elif parameter.use == "refused" and not _is_among(value, parameter.harmless):
            raise RequestError(
                400, f"{param} is not supported. {parameter.words}", param=param, code="unsupported_parameter"
            )
    return used


def parameters_table() -> str:
    """All parameters as a Markdown table."""
    lines = ["| parameter | of | what becomes of it | |", "| --- | --- | --- | --- |"]
    for parameter in PARAMETERS:
        of = "both" if parameter.apis == BOTH else parameter.apis[0]
        lines.append(f"| `{parameter.name}` | {of} | {_use_words(parameter)} | {parameter.words} |")
    return "\n".join(lines) + "\n"


def fields_table(fields: Sequence[Parameter]) -> str:
    """Fields of one kind of object as a Markdown table; those with the same words share a line."""
    lines = ["| field | what becomes of it | |", "| --- | --- | --- |"]
    for (use, words), same in itertools.groupby(fields, lambda each: (_use_words(each), each.words)):
        lines.append(f"| {', '.join(f'`{each.name}`' for each in same)} | {use} | {words} |")
    return "\n".join(lines) + "\n"


def _use_words(parameter: Parameter) -> str:
    return _USES.get(parameter.use) or _refused_words(parameter)


def _refused_words(parameter: Parameter) -> str:
    values = " or ".join(f"`{_json(value)}`" for value in parameter.harmless)
    return f"only as {values}" if values else "refused"


def _json(value: object) -> str:
    return json.dumps(value)


def _is_among(value: Any, harmless: tuple[Any, ...]) -> bool:
    """Whether it is one of these; numbers and truth values are told apart."""
    return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in harmless)


def _unknown(name: str, param: str, known: Mapping[str, Parameter]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"Did you mean {near[0]}?" if near else "docs/api.md lists those that there are."
    return f"Unknown parameter: {param!r}. {hint}"
