"""What a tokenizer.json may make of a text at most: how much longer it gets, and what takes more than its time.

Pure over the file's content, whichever library reads it. Invariant: decoding is bounded by the number of tokens, and so
is safe in any process; encoding is either bounded by the text or left to a child process with limits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from moa_shared.tokenization.patterns import KNOWN

Step = Mapping[str, Any]
_MOST_ENCODED = 256  # times a text's length; compatibility forms of Unicode in UTF-8 are 72
_MOST_IN_PROCESS = 16  # NFC in UTF-8 is 12
_MOST_DECODED = 4
_MOST_STEPS = 16  # known models have up to 6
_LONGEST_TOKEN = 1024  # characters; those of known models have up to 256
_MOST_COMPARED = 4096  # characters, at each place where added tokens may begin; Gemma has 500
_FORMS = {"NFC": 3, "NFD": 4, "NFKC": 18, "NFKD": 18}  # Unicode's own figures
_SEQUENCES = ("normalizers", "pretokenizers", "decoders")


def check_bounds(content: Step) -> bool:
    """Whether texts may be encoded in any process, by this content of a tokenizer.json.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: it makes no sense, or makes text out of proportion.
    """
    added = [str(token["content"]) for token in content.get("added_tokens") or ()]
    longest = max(map(len, (*content["model"]["vocab"], *added)), default=0)
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
    lengths: dict[str, set[int]] = {}
    for token in filter(None, added):
        lengths.setdefault(token[0], set()).add(len(token))
    if (compared := max(map(sum, lengths.values()), default=0)) > _MOST_COMPARED:
        raise ValueError(f"its added tokens of one first letter have lengths of {compared:,} characters together")
    expressions = {step["pattern"]["Regex"] for step in encoding if "Regex" in (step.get("pattern") or ())}
    return encoded <= _MOST_IN_PROCESS and len(encoding) <= _MOST_STEPS and expressions <= KNOWN


def _steps(step: Step | None) -> list[Step]:
    """The steps of a sequence, and of sequences in it."""
    if not isinstance(step, Mapping):  # whoever reads it says so
        return []
    if step.get("type") != "Sequence":
        return [step]
    return [inner for name in _SEQUENCES for each in step.get(name, ()) for inner in _steps(each)]


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
