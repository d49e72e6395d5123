"""All parameters of ollama's requests for answers, their options and the fields of their messages, and what becomes of
each. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moa_client.endpoint.parameters import Api, Parameter, fields_table, used_fields

OLLAMA: tuple[Api, ...] = ("ollama",)
_TEXT_ONLY = "Models read text only."
_HOW = "How ollama's own engine runs; the text does not depend on it here."
_CHANCES = "Not given in this form: ask `/v1/chat/completions`."

PARAMETERS = (
    Parameter("model", OLLAMA, "used", "The name that `/api/tags` gives, with or without `:latest`, or `default`."),
    Parameter("messages", OLLAMA, "used", "Of a chat; none: the model is only to be loaded, which it is."),
    Parameter("tools", OLLAMA, "used", "Of a chat, up to 128 functions; not with `format`."),
    Parameter("prompt", OLLAMA, "used", "Of `/api/generate`; empty: as no messages."),
    Parameter("system", OLLAMA, "used", "Of `/api/generate`: before the prompt."),
    Parameter("raw", OLLAMA, "used", "Of `/api/generate`; true: the prompt is continued as it is, without a template."),
    Parameter("stream", OLLAMA, "used", "true if absent: an object a line, as the text is committed."),
    Parameter("format", OLLAMA, "used", "`json`, or a JSON schema, which is enforced."),
    Parameter("options", OLLAMA, "used", "See below."),
    Parameter(
        "think",
        OLLAMA,
        "used",
        "true, false or `low`, `medium`, `high`, `max`, as far as the model can be asked.",
    ),
    Parameter("keep_alive", OLLAMA, "ignored", "The server's model stays loaded."),
    Parameter("truncate", OLLAMA, "refused", "What does not fit into the context is refused.", (False,)),
    Parameter("shift", OLLAMA, "refused", "An answer ends where the context does.", (False,)),
    Parameter("logprobs", OLLAMA, "refused", _CHANCES, (False,)),
    Parameter("top_logprobs", OLLAMA, "refused", _CHANCES, (0,)),
    Parameter("images", OLLAMA, "refused", _TEXT_ONLY, ([],)),
    Parameter("suffix", OLLAMA, "refused", "Texts are only continued at their end.", ("",)),
    Parameter("template", OLLAMA, "refused", "The model's own is used; `raw` uses none.", ("",)),
    Parameter("context", OLLAMA, "refused", "Conversations are not kept: send their messages to `/api/chat`.", ([],)),
    *(Parameter(name, OLLAMA, "refused", "Answers are text.", (0,)) for name in ("width", "height", "steps")),
)
OPTIONS = (
    Parameter("temperature", OLLAMA, "used", "0 (greedy) or 0.001 to 100; if absent the model's, else 0.8."),
    Parameter("top_k", OLLAMA, "used", "0: all; if absent the model's, else 40."),
    Parameter("top_p", OLLAMA, "used", "More than 0, at most 1; if absent the model's, else 0.9."),
    Parameter("min_p", OLLAMA, "used", "0 to 1; if absent the model's, else 0."),
    Parameter("seed", OLLAMA, "used", "A negative one or none: a random one."),
    Parameter("num_predict", OLLAMA, "used", "The most tokens of an answer; negative: as the context allows."),
    Parameter("stop", OLLAMA, "used", "One text, or up to 16 of them, of 1 to 64 characters."),
    Parameter("repeat_penalty", OLLAMA, "used", "0.01 to 100; if absent the model's, else 1.1."),
    Parameter("repeat_last_n", OLLAMA, "used", "Tokens that it looks back; 0: none, -1: all; if absent 64."),
    *(Parameter(name, OLLAMA, "used", "-2 to 2, 0 if absent.") for name in ("presence_penalty", "frequency_penalty")),
    Parameter("num_ctx", OLLAMA, "ignored", "The context is as long as the server has it; what is longer is refused."),
    *(
        Parameter(name, OLLAMA, "ignored", _HOW)
        for name in (
            "num_keep",
            "num_batch",
            "num_gpu",
            "main_gpu",
            "num_thread",
            "numa",
            "low_vram",
            "f16_kv",
            "use_mmap",
            "use_mlock",
            "vocab_only",
            "logits_all",
            "embedding_only",
        )
    ),
    Parameter("mirostat", OLLAMA, "refused", "There is no such sampler.", (0,)),
    *(Parameter(name, OLLAMA, "ignored", "Of `mirostat`.") for name in ("mirostat_tau", "mirostat_eta")),
    *(Parameter(name, OLLAMA, "refused", "There is no such sampler.", (1, 1.0)) for name in ("tfs_z", "typical_p")),
    Parameter("penalize_newline", OLLAMA, "refused", "New lines are penalized as all tokens.", (True,)),
)
MESSAGE_FIELDS = (
    Parameter("role", OLLAMA, "used", "`system`, `user`, `assistant` or `tool`."),
    Parameter("content", OLLAMA, "used", "A text."),
    Parameter("tool_calls", OLLAMA, "used", "Of `assistant`: its calls, as they were received."),
    Parameter("tool_name", OLLAMA, "used", "Of `tool`: the name of the tool that it answers."),
    Parameter("tool_call_id", OLLAMA, "used", "Of `tool`: the `id` of the call that it answers."),
    Parameter("thinking", OLLAMA, "ignored", "Thoughts before an earlier answer, which the model does not get."),
    Parameter("images", OLLAMA, "refused", _TEXT_ONLY, ([],)),
)


def used_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a request that have an effect, at all depths; what has another form is left as it is.

    Raises:
        RequestError: a field is unknown, or would need what there is not.
    """
    used = used_fields(body, _by_name(PARAMETERS))
    if isinstance(options := used.get("options"), dict):
        used["options"] = used_fields(options, _by_name(OPTIONS), "options.")
    if isinstance(messages := used.get("messages"), list):
        used["messages"] = [
            used_fields(each, _by_name(MESSAGE_FIELDS), f"messages[{number}].") if isinstance(each, dict) else each
            for number, each in enumerate(messages)
        ]
    return used


def _by_name(fields: tuple[Parameter, ...]) -> dict[str, Parameter]:
    return {field.name: field for field in fields}


def parameters_table() -> str:
    """All parameters as a Markdown table."""
    return fields_table(PARAMETERS)


def options_table() -> str:
    """All options as a Markdown table."""
    return fields_table(OPTIONS)
