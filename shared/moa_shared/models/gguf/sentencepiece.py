"""SentencePiece vocabularies of GGUF files (`tokenizer.ggml.model` = llama) as byte pairs of tokenizer.json.

Pure over the header. llama.cpp joins the two neighbours whose joint token has the highest score: the same as byte pairs
whose merges are all ways to make each token, in the order of scores. Invariant: ids are those of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from moa_shared.models.gguf.header import GgufHeader
from moa_shared.tokenization.token_bytes import SPACE

_NORMAL = 1  # of `tokenizer.ggml.token_type`
_SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
_TEXT = (
    {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
)  # fmt: skip


def describe_sentencepiece(header: GgufHeader) -> dict[str, Any]:
    """What tokenizer.json says, but for added tokens.

    Raises:
        ValueError: a vocabulary that makes no sense.
    """
    tokens, scores = header.texts("tokenizer.ggml.tokens"), header.reals("tokenizer.ggml.scores")
    kinds = header.integers("tokenizer.ggml.token_type") or [_NORMAL] * len(tokens)
    if not tokens or not len(scores) == len(kinds) == len(tokens):
        raise ValueError(f"{len(tokens)} tokens of {len(kinds)} types, {len(scores)} scores")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    joined = [index for index, kind in enumerate(kinds) if kind == _NORMAL and len(tokens[index]) > 1]
    joined.sort(key=lambda index: -scores[index])
    merges = [pair for index in joined for pair in _ways(tokens[index], vocabulary)]
    model = _byte_pairs(header, tokens, vocabulary, merges)
    decoders: list[dict[str, Any]] = list(_TEXT)
    if header.flag("tokenizer.ggml.add_space_prefix") is False:
        normaliser: dict[str, Any] = _SPACES
    else:
        normaliser = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE}, _SPACES]}
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "normalizer": normaliser,
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": model,
    }


def describe_gemma4(header: GgufHeader) -> dict[str, Any]:
    """What tokenizer.json says of Gemma 4 (`tokenizer.ggml.model` = gemma4), whose merges the file names.

    Raises:
        ValueError: a vocabulary that makes no sense.
    """
    tokens, merges = header.texts("tokenizer.ggml.tokens"), header.texts("tokenizer.ggml.merges")
    if not tokens or not merges:
        raise ValueError(f"{len(tokens)} tokens, {len(merges)} merges")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    pairs = [(first, second) for first, _, second in (merge.partition(" ") for merge in merges)]
    return {
        "normalizer": _SPACES,
        "pre_tokenizer": {
            "type": "Split", "pattern": {"Regex": r"[^\n]+|\n+"}, "behavior": "Isolated", "invert": False,
        },
        "decoder": {"type": "Sequence", "decoders": list(_TEXT)},
        "model": _byte_pairs(header, tokens, vocabulary, pairs),
    }  # fmt: skip


def _byte_pairs(
    header: GgufHeader, tokens: Sequence[str], vocabulary: dict[str, int], merges: Sequence[tuple[str, str]]
) -> dict[str, Any]:
    unknown = header.token_id("unknown")
    return {
        "type": "BPE",
        "unk_token": tokens[unknown] if unknown is not None else None,
        "fuse_unk": True,
        "byte_fallback": True,
        "vocab": vocabulary,
        "merges": merges,
    }


def _ways(token: str, vocabulary: dict[str, int]) -> Iterator[tuple[str, str]]:
    """The pairs of tokens that make a token when joined, the likeliest first."""
    pairs = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
    known = [pair for pair in pairs if pair[0] in vocabulary and pair[1] in vocabulary]
    yield from sorted(known, key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]])) if len(known) > 1 else known
