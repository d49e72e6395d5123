"""SentencePiece vocabularies of GGUF files (`tokenizer.ggml.model` = llama) as byte pairs of the `tokenizers` package.

Pure over the header. llama.cpp joins the two neighbours whose joint token has the highest score: the same as byte pairs
whose merges are all ways to make each token, in the order of scores. Invariant: ids are those of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from moa_shared.models.gguf.header import GgufHeader

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_SPACE = "▁"
_NORMAL = 1  # of `tokenizer.ggml.token_type`


def build_sentencepiece(header: GgufHeader) -> Tokenizer:
    """The tokenizer without special tokens.

    Raises:
        ValueError: a vocabulary that makes no sense.
    """
    from tokenizers import Tokenizer, decoders, normalizers
    from tokenizers.models import BPE

    tokens, scores = header.texts("tokenizer.ggml.tokens"), header.reals("tokenizer.ggml.scores")
    kinds = header.integers("tokenizer.ggml.token_type") or [_NORMAL] * len(tokens)
    if not tokens or not len(scores) == len(kinds) == len(tokens):
        raise ValueError(f"{len(tokens)} tokens of {len(kinds)} types, {len(scores)} scores")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    joined = [index for index, kind in enumerate(kinds) if kind == _NORMAL and len(tokens[index]) > 1]
    joined.sort(key=lambda index: -scores[index])
    merges = [pair for index in joined for pair in _ways(tokens[index], vocabulary)]
    unknown = header.integer("tokenizer.ggml.unknown_token_id")
    unk_token = tokens[unknown] if unknown is not None else None
    tokenizer = Tokenizer(BPE(vocabulary, merges, unk_token=unk_token, fuse_unk=True, byte_fallback=True))
    spaces = normalizers.Replace(" ", _SPACE)
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if header.flag("tokenizer.ggml.add_space_prefix") is False:
        tokenizer.normalizer = spaces
    else:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces])
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def build_gemma4(header: GgufHeader) -> Tokenizer:
    """The tokenizer of Gemma 4 (`tokenizer.ggml.model` = gemma4), whose merges the file names: without special tokens.

    Raises:
        ValueError: a vocabulary that makes no sense.
    """
    from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
    from tokenizers.models import BPE

    tokens, merges = header.texts("tokenizer.ggml.tokens"), header.texts("tokenizer.ggml.merges")
    if not tokens or not merges:
        raise ValueError(f"{len(tokens)} tokens, {len(merges)} merges")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    pairs = [(first, second) for first, _, second in (merge.partition(" ") for merge in merges)]
    unknown = header.integer("tokenizer.ggml.unknown_token_id")
    unk_token = tokens[unknown] if unknown is not None else None
    tokenizer = Tokenizer(BPE(vocabulary, pairs, unk_token=unk_token, fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", _SPACE)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[^\n]+|\n+"), behavior="isolated")
    tokenizer.decoder = decoders.Sequence([decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def _ways(token: str, vocabulary: dict[str, int]) -> Iterator[tuple[str, str]]:
    """The pairs of tokens that make a token when joined, the likeliest first."""
    pairs = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
    known = [pair for pair in pairs if pair[0] in vocabulary and pair[1] in vocabulary]
    yield from sorted(known, key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]])) if len(known) > 1 else known
