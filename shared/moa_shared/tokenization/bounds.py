"""What a tokenizer.json may make of a text at most: how much longer it gets, and what takes more than its time. Pure.

Invariant: decoding is bounded by the number of tokens, and so is safe in any process; encoding is either bounded by the
text or left to a child process with limits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

# Expressions by which the tokenizers of known models cut text: they take time in proportion to its length.
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_2 = LLAMA_3.replace("{1,3}", "")
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
GPT_4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + _ENDING + r"|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + _ENDING + r"|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
KNOWN = frozenset({LLAMA_3, QWEN_2, TEKKEN, GPT_4O, GPT_2})

Step = Mapping[str, Any]
_MOST_ENCODED = 256  # times a text's length; compatibility forms of Unicode in UTF-8 are 72
_MOST_IN_PROCESS = 16  # NFC in UTF-8 is 12
_MOST_DECODED = 4
_MOST_STEPS = 16  # known models have up to 6
_LONGEST_TOKEN = 1024  # characters; those of known models have up to 256
_FORMS = {"NFC": 3, "NFD": 4, "NFKC": 18, "NFKD": 18}  # Unicode's own figures
_CUTS = ("Split", "Digits", "Punctuation", "WhitespaceSplit")
_ENCODING = {*_FORMS, "Prepend", "Replace", "ByteLevel", "Metaspace", *_CUTS}
_DECODING = {"ByteLevel", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}
_MODELS = ("BPE", "WordLevel")
_AFFIXES = ("continuing_subword_prefix", "end_of_word_suffix")


def check_bounds(content: Step) -> bool:
    """Whether texts may be encoded in any process, by this content of a tokenizer.json."""
    model = content["model"]
    if model.get("dropout"):
        raise ValueError("moa does not read byte pairs with a dropout")
    added = [str(token["content"]) for token in content.get("added_tokens") or ()]
    known = model["vocab"] if isinstance(model["vocab"], Mapping) else [str(piece) for piece, _ in model["vocab"]]
    longest = max(map(len, (*known, *added)), default=0)
    if longest > _LONGEST_TOKEN:
        raise ValueError(f"it has a token of {longest:,} characters, at most {_LONGEST_TOKEN:,} are allowed")
    encoding = [*_steps(content.get("normalizer")), *_steps(content.get("pre_tokenizer"))]
    decoding = _steps(content.get("decoder"))
    encoded, decoded = (math.prod(map(_growth, steps)) for steps in (encoding, decoding))
    for what, times, most in (("encoding", encoded, _MOST_ENCODED), ("decoding", decoded, _MOST_DECODED)):
        if times > most:
            raise ValueError(f"its {what} may make a text more than {most} times as long")
    if len(decoding) > _MOST_STEPS:
        raise ValueError(f"its decoder has {len(decoding):,} steps, at most {_MOST_STEPS} are allowed")
    for step in decoding:
        if step.get("type") not in _DECODING or "Regex" in (step.get("pattern") or ()):
            raise ValueError(f"moa does not read its decoder {step.get('type')}")
    expressions = {step["pattern"]["Regex"] for step in encoding if "Regex" in (step.get("pattern") or ())}
    is_plain = model.get("type", "BPE") in _MODELS and not any(model.get(each) for each in _AFFIXES)
    is_plain = is_plain and all(step.get("type") in _ENCODING for step in encoding)
    return is_plain and encoded <= _MOST_IN_PROCESS and len(encoding) <= _MOST_STEPS and expressions <= KNOWN


def _steps(step: Step | None) -> list[Step]:
    if not isinstance(step, Mapping):  # the package says so
        return []
    if step.get("type") != "Sequence":
        return [step]
    sequences = ("normalizers", "pretokenizers", "decoders")
    return [inner for name in sequences for each in step.get(name, ()) for inner in _steps(each)]


def _growth(step: Step) -> int:
    """How many times as long a step may make a text."""
    match step:
        case {"type": "Prepend", "prepend": str(text)}:
            return 1 + len(text)
        case {"type": "Replace", "pattern": {"String": str(text)}, "content": str(content)} if text:
            return -(-max(len(text), len(content)) // len(text))
        case {"type": "Replace", "content": str(content)}:  # for an expression, which may match nothing
            return 1 + len(content)
        case {"type": "ByteLevel"}:
            return 4 * (1 + bool(step.get("add_prefix_space")))
        case {"type": "Metaspace", "replacement": str(space)}:
            return 1 + len(space)
        case _:
            return _FORMS.get(str(step.get("type")), 1)
