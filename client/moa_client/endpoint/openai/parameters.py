"""All parameters of OpenAI's requests, and what becomes of each here. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from moa_client.endpoint.parameters import Api, Parameter, use_words, used_fields

ALL: tuple[Api, ...] = ("chat", "completions", "responses")
BOTH: tuple[Api, ...] = ("chat", "completions")
CHAT: tuple[Api, ...] = ("chat",)
TEXT: tuple[Api, ...] = ("completions",)
MESSAGES: tuple[Api, ...] = ("chat", "responses")
RESPONSES: tuple[Api, ...] = ("responses",)
EMBEDDINGS: tuple[Api, ...] = ("embeddings",)


PARAMETERS = (
    Parameter("model", ALL, "used", "The name that `/v1/models` gives, or `default`; may be absent."),
    Parameter(
        "messages",
        CHAT,
        "used",
        "Roles `system`, `developer`, `user`, `assistant`, `tool`; text only; the last is not from `assistant`.",
    ),
    Parameter("prompt", TEXT, "used", "One text, or the ids of its tokens; or a list of several: see below."),
    Parameter("stream", ALL, "used", "Server-sent events, as the text is committed."),
    Parameter("stream_options", BOTH, "used", "`include_usage`; `include_obfuscation` only as false."),
    Parameter(
        "temperature", ALL, "used", "0 (greedy) or 0.001 to 100; if absent the model's, else 1, as OpenAI has it."
    ),
    Parameter("top_p", ALL, "used", "More than 0, at most 1; if absent the model's, else 1."),
    Parameter("presence_penalty", ALL, "used", "-2 to 2, 0 if absent."),
    Parameter("frequency_penalty", ALL, "used", "-2 to 2, 0 if absent."),
    Parameter("logit_bias", ALL, "used", "Up to 300 token ids, each with -100 to 100."),
    Parameter(
        "top_k",
        ALL,
        "used",
        "Sample from the k likeliest tokens; 0: all; if absent the model's, else 0. An extension, as the next four.",
    ),
    Parameter(
        "min_p",
        ALL,
        "used",
        "0 to 1: leave out tokens less likely than this share of the likeliest one; if absent the model's, else 0.",
    ),
    Parameter("repeat_penalty", ALL, "used", "0.01 to 100, llama.cpp's; if absent the model's, else 1, which is off."),
    Parameter(
        "repeat_last_n", ALL, "used", "Tokens that it looks back; 0: none, -1: all; if absent the model's, else 64."
    ),
    Parameter("loop_guard", ALL, "used", "true if absent: an answer that only repeats itself is ended."),
    Parameter("seed", ALL, "used", "-2^63 to 2^64 - 1; if absent a random one, which the response has as `moa.seed`."),
    Parameter("n", BOTH, "used", "1 to 8 answers to each question, 1 if absent: see below."),
    Parameter("max_completion_tokens", CHAT, "used", "At least 1; absent: as the context allows."),
    Parameter(
        "max_tokens", BOTH, "used", "The older name; of a text 16 if absent, as OpenAI has it; 0 only with `echo`."
    ),
    Parameter("stop", ALL, "used", "One text, or up to 16 of them, of 1 to 64 characters."),
    Parameter(
        "response_format",
        BOTH,
        "used",
        "`text`, `json_object`, or `json_schema`, which is enforced, `strict` or not.",
    ),
    Parameter(
        "structured_outputs",
        ALL,
        "used",
        "One of `json` (a schema), `regex`, `choice` (texts) and `grammar` (Lark's). An extension, vLLM's.",
    ),
    Parameter("tools", CHAT, "used", "Up to 128 functions, see below; not with `structured_outputs`."),
    Parameter("tool_choice", MESSAGES, "used", "`auto`, `none`, `required`, or a function by its name."),
    Parameter("parallel_tool_calls", MESSAGES, "used", "true if absent; false: an answer has one call at most."),
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
    Parameter("logprobs", CHAT, "used", "true: how likely the model finds each token, see below."),
    Parameter("top_logprobs", CHAT, "used", "0 to 20 of the likeliest tokens in each place; with `logprobs`."),
    Parameter("logprobs", TEXT, "used", "0 to 20: the same for a text, with so many of the likeliest tokens."),
    Parameter("echo", TEXT, "used", "true: the text begins with the prompt; with `logprobs`, so do they."),
    Parameter("moa", ALL, "used", "Extensions: see below."),
    Parameter("user", ALL, "ignored", "No abuse is watched for here."),
    Parameter("safety_identifier", ALL, "ignored", "The same."),
    Parameter("metadata", BOTH, "ignored", "It belongs to answers that are kept: `/v1/responses` keeps some."),
    Parameter("prompt_cache_key", ALL, "ignored", "Prefixes are found without it."),
    Parameter("prompt_cache_retention", ALL, "ignored", "Prefixes are kept as long as there is room."),
    Parameter("prediction", CHAT, "ignored", "The text does not depend on it; drafts come from elsewhere."),
    Parameter("service_tier", ALL, "ignored", "There is one."),
    Parameter("best_of", TEXT, "refused", "No answer is better than another here: ask for several with `n`.", (1,)),
    Parameter("suffix", TEXT, "refused", "Texts are only continued at their end.", ("",)),
    Parameter("functions", CHAT, "refused", "The older form of `tools`: send these.", ([],)),
    Parameter("function_call", CHAT, "refused", "The older form of `tool_choice`: send that.", ("none", "auto")),
    Parameter("web_search_options", CHAT, "refused", "Nothing is searched here."),
    Parameter("modalities", CHAT, "refused", "Answers are text.", (["text"],)),
    Parameter("audio", CHAT, "refused", "Answers are text."),
    Parameter("verbosity", CHAT, "refused", "Models answer as their chat template has it.", ("medium",)),
    Parameter("store", CHAT, "refused", "Only `/v1/responses` keeps answers.", (False,)),
    Parameter(
        "input", RESPONSES, "used", "A text, or items: see below; the last is not from `assistant`, and no call."
    ),
    Parameter("instructions", RESPONSES, "used", "The system prompt; it is not handed on to the responses after it."),
    Parameter("previous_response_id", RESPONSES, "used", "A kept response, which this one continues."),
    Parameter("store", RESPONSES, "used", "Whether it is kept: true if absent, unless the daemon keeps nothing."),
    Parameter("metadata", RESPONSES, "used", "Up to 16 texts by name; the response has them, as long as it is kept."),
    Parameter("max_output_tokens", RESPONSES, "used", "At least 1; absent: as the context allows."),
    Parameter(
        "text",
        RESPONSES,
        "used",
        "`format`: `text`, `json_object`, or `json_schema`, which is enforced, `strict` or not; `verbosity` only as "
        "`medium`.",
    ),
    Parameter("tools", RESPONSES, "used", "Up to 128 functions; not with a `format`. There are no built-in tools."),
    Parameter("stream_options", RESPONSES, "used", "`include_obfuscation` only as false."),
    Parameter("max_tool_calls", RESPONSES, "ignored", "It counts calls of built-in tools, and there are none."),
    Parameter("prompt_cache_options", RESPONSES, "ignored", "Prefixes are found without them."),
    Parameter(
        "include",
        RESPONSES,
        "refused",
        "Nothing more can be said of a response; reasoning comes as text, without encryption.",
        ([], ["reasoning.encrypted_content"]),
    ),
    Parameter("reasoning", RESPONSES, "used", "`effort`, as chats have `reasoning_effort`; summaries are not made."),
    Parameter("top_logprobs", RESPONSES, "refused", "Responses tell no probabilities.", (0,)),
    Parameter("truncation", RESPONSES, "refused", "Nothing is left out of an input: shorten it.", ("disabled",)),
    Parameter("background", RESPONSES, "refused", "A response is made while its client waits.", (False,)),
    Parameter("background_options", RESPONSES, "refused", "A response is made while its client waits."),
    Parameter("conversation", RESPONSES, "refused", "Continue a response with `previous_response_id`."),
    Parameter("context_management", RESPONSES, "refused", "Nothing is left out of an input: shorten it.", ([],)),
    Parameter("prompt", RESPONSES, "refused", "No prompts are kept here: send its text as `instructions` or `input`."),
    Parameter("image", RESPONSES, "refused", "Models read text only."),
    Parameter("moderation", RESPONSES, "refused", "Nothing is moderated here."),
    Parameter("access_programs", RESPONSES, "refused", "There are none here."),
)
EMBEDDING_PARAMETERS = (
    Parameter("model", EMBEDDINGS, "used", "The name that `/v1/models` gives, or `default`; may be absent."),
    Parameter("input", EMBEDDINGS, "used", "A text, the ids of its tokens, or a list of up to 256 of them."),
    Parameter("encoding_format", EMBEDDINGS, "used", "`float`, or `base64` of little-endian float32."),
    Parameter("dimensions", EMBEDDINGS, "refused", "Vectors are as wide as the model's states."),
    Parameter("user", EMBEDDINGS, "ignored", "No abuse is watched for here."),
)
_BY_NAME: dict[Api, dict[str, Parameter]] = {
    api: {each.name: each for each in (*PARAMETERS, *EMBEDDING_PARAMETERS) if api in each.apis} for api in get_args(Api)
}


def used_parameters(body: Mapping[str, Any], api: Api) -> dict[str, Any]:
    """The parameters of a request that have an effect.

    Raises:
        RequestError: one is unknown, or would need what there is not.
    """
    return used_fields(body, _BY_NAME[api])


def parameters_table(parameters: Sequence[Parameter]) -> str:
    """Parameters as a Markdown table."""
    lines = ["| parameter | of | what becomes of it | |", "| --- | --- | --- | --- |"]
    for parameter in parameters:
        of = "all" if parameter.apis == ALL else ", ".join(parameter.apis)
        lines.append(f"| `{parameter.name}` | {of} | {use_words(parameter)} | {parameter.words} |")
    return "\n".join(lines) + "\n"
