"""Special tokens out of a GGUF file's metadata, and which of them end an answer, as llama.cpp decides it.

Pure over the header. Many files name one end of text only, or the wrong one: llama.cpp also ends an answer at tokens
that are spelled as the ends of known families.
"""

from __future__ import annotations

from typing import Any

from moa_shared.models.gguf.header import GgufHeader

_NAMED = {"bos": "bos", "pad": "padding", "unk": "unknown"}
_ENDS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
_TURN = "<|end|>"
_SPELLINGS = frozenset(
    {
        _TURN,
        "<|eot_id|>",
        "<|im_end|>",
        "<|return|>",
        "<|call|>",
        "<|flush|>",
        "<|calls|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|eom_id|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "<eos>",
        "<turn|>",
        "<|tool_response>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
        "[e~[",
    }
)
# Ends an answer only where it is a special token: in Gemma's vocabulary it is HTML (llama.cpp ends answers there too).
_SENTENCE = "</s>"
_CONTROL = 3  # of `tokenizer.ggml.token_type`
# Where both of these are there, that one ends a part of an answer only (gpt-oss, Solar).
_UNLESS = (({"<|return|>", "<|call|>"}, _TURN), ({"<|calls|>", "<|flush|>"}, _TURN))


def special_ids(header: GgufHeader) -> dict[str, Any]:
    """`bos_token_id` and so on of config.json; `eos_token_id` is a list where several tokens end an answer.

    Raises:
        ModelSourceError: an id that is no token.
    """
    tokens = header.texts("tokenizer.ggml.tokens")
    found: dict[str, Any] = {f"{key}_token_id": header.token_id(name) for key, name in _NAMED.items()}
    ends = _ends(header, tokens)
    found["eos_token_id"] = ends[0] if len(ends) == 1 else ends or None
    return {key: value for key, value in found.items() if value is not None}


def _ends(header: GgufHeader, tokens: list[str]) -> list[int]:
    kinds = header.integers("tokenizer.ggml.token_type") or [_CONTROL] * len(tokens)
    spelled = {
        token: index
        for index, (token, kind) in enumerate(zip(tokens, kinds, strict=False))
        if token in _SPELLINGS or (token == _SENTENCE and kind == _CONTROL)
    }
    ends = dict.fromkeys([*(header.token_id(name) for name in _ENDS), *spelled.values()])
    for present, is_none in _UNLESS:
        if present <= spelled.keys():
            ends.pop(spelled.get(is_none), None)
    return [index for index in ends if index is not None]
