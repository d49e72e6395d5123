"""tokenizer.json, tokenizer_config.json and chat_template.jinja out of a GGUF file's metadata.

Built over the `tokenizers` package: byte-level BPE here, SentencePiece in `sentencepiece.py`. Invariant: text is cut
before BPE as the header says; a dialect that is not known here is reported.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from moa_shared.errors import ModelSourceError
from moa_shared.models.gguf.header import DAMAGED, GgufHeader
from moa_shared.models.gguf.sentencepiece import build_gemma4, build_sentencepiece
from moa_shared.programs.progress import Progress
from moa_shared.sandbox.patterns import GPT_4O, LLAMA_3, QWEN_2, TEKKEN

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.pre_tokenizers import PreTokenizer

_BYTE_PAIRS, _SENTENCEPIECE, _GEMMA_4 = "gpt2", "llama", "gemma4"  # `tokenizer.ggml.model`
_SPELLED = {_SENTENCEPIECE: build_sentencepiece, _GEMMA_4: build_gemma4}  # in letters, not in bytes
_CONTROL, _USER_DEFINED = 3, 4  # of `tokenizer.ggml.token_type`
_SPECIAL = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
_LLAMA_3 = ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2")
# What `tokenizer.ggml.pre` may say: the expression by which text is cut. None: GPT-2's own.
_SPLITS: dict[str | None, str | None] = {
    **dict.fromkeys(("default", "gpt-2", "gpt2", "olmo", "phi-2", "trillion", "granite-docling", None), None),
    **dict.fromkeys((*_LLAMA_3, "dbrx", "smaug-bpe"), LLAMA_3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "kormo"), QWEN_2),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2"), GPT_4O),
    "tekken": TEKKEN,
}
# GPT-2's expression after each digit is split off (SmolLM 2, Granite 3, StarCoder).
_DIGITS_FIRST = ("smollm", "refact", "starcoder", "command-r", "codeshell", "exaone", "minerva-7b")
# Dialects whose texts begin with BOS where the header does not say; so do all SentencePiece vocabularies (llama.cpp).
_BEGIN_WITH_BOS = (*_LLAMA_3, "tekken")
_WHOLE_WORDS = _BEGIN_WITH_BOS  # a word that is a token is not made by merges
_CONFIG = "tokenizer_config.json"


def write_tokenizer(header: GgufHeader, folder: Path, progress: Progress) -> None:
    """Write the tokenizer's files into `folder`.

    Raises:
        ModelSourceError: no vocabulary, one that makes no sense, or one of a kind that cannot be read here.
    """
    kind = check_vocabulary(header)
    tokens = header.texts("tokenizer.ggml.tokens")
    named = {key: header.integer(f"tokenizer.ggml.{name}_token_id") for key, name in _SPECIAL.items()}
    try:
        tokenizer = _SPELLED[kind](header) if kind in _SPELLED else _build(header, progress)
        _add_tokens(tokenizer, header)
        tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
        config: dict[str, object] = {key: tokens[index] for key, index in named.items() if index is not None}
    except Exception as error:  # tokenizers raises a bare Exception, for a merge of unknown tokens among others
        raise ModelSourceError(
            f"The vocabulary of the GGUF file {header.path} makes no sense ({error}).", hint=DAMAGED
        ) from error
    config["tokenizer_class"] = "PreTrainedTokenizerFast"  # for those who read this folder with transformers
    by_dialect = kind in _SPELLED or header.text("tokenizer.ggml.pre") in _BEGIN_WITH_BOS
    said = header.flag("tokenizer.ggml.add_bos_token")
    config["add_bos_token"] = by_dialect if said is None else said
    (folder / _CONFIG).write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", "utf-8")
    template = header.text("tokenizer.chat_template")
    if template:
        (folder / "chat_template.jinja").write_text(template, "utf-8")


def check_vocabulary(header: GgufHeader) -> str:
    """The kind of a vocabulary, from a header that may lack its arrays.

    Raises:
        ModelSourceError: one that cannot be read here.
    """
    kind = header.text("tokenizer.ggml.model")
    if kind is None or kind not in (_BYTE_PAIRS, *_SPELLED):
        raise ModelSourceError(
            f"The GGUF file {header.path} has a tokenizer of the kind {kind!r}, which moa does not read.",
            hint="Use the same model as a folder of safetensors or a hub id.",
        )
    return kind


def _add_tokens(tokenizer: Tokenizer, header: GgufHeader) -> None:
    """Tokens that are found in a text before it is cut: special ones, and those that a user has defined."""
    from tokenizers import AddedToken

    tokens, kinds = header.texts("tokenizer.ggml.tokens"), header.integers("tokenizer.ggml.token_type")
    named = (header.integer(f"tokenizer.ggml.{name}_token_id") for name in _SPECIAL.values())
    control = [index for index, kind in enumerate(kinds) if kind == _CONTROL]
    special = dict.fromkeys([*control, *(index for index in named if index is not None)])
    tokenizer.add_special_tokens([AddedToken(tokens[index], normalized=False, special=True) for index in special])
    own = [token for token, kind in zip(tokens, kinds, strict=False) if kind == _USER_DEFINED]
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in own])


def _build(header: GgufHeader, progress: Progress) -> Tokenizer:
    from tokenizers import Tokenizer, decoders
    from tokenizers.models import BPE

    tokens, merges = header.texts("tokenizer.ggml.tokens"), header.texts("tokenizer.ggml.merges")
    kinds = header.integers("tokenizer.ggml.token_type") or [1] * len(tokens)
    if not tokens or not merges or len(kinds) != len(tokens):
        raise ValueError(f"{len(tokens)} tokens of {len(kinds)} types, {len(merges)} merges")
    whole = {index for index, kind in enumerate(kinds) if kind in (_CONTROL, _USER_DEFINED)}
    vocabulary = {token if index in whole else _spell(token): index for index, token in enumerate(tokens)}
    pairs = [(first, second) for first, _, second in (merge.partition(" ") for merge in merges)]
    dialect = header.text("tokenizer.ggml.pre")
    empty = {"continuing_subword_prefix": "", "end_of_word_suffix": ""}
    tokenizer = Tokenizer(BPE(vocabulary, pairs, fuse_unk=False, ignore_merges=dialect in _WHOLE_WORDS, **empty))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.pre_tokenizer = _pre_tokenizer(dialect, progress)
    return tokenizer


def _pre_tokenizer(dialect: str | None, progress: Progress) -> PreTokenizer:
    from tokenizers import Regex, pre_tokenizers

    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if dialect in _DIGITS_FIRST:  # without it "\n\n1" loses its double newline token
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    split = _SPLITS.get(dialect)
    if split is not None:
        return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(split), behavior="isolated"), bytes_only])
    if dialect not in _SPLITS:
        progress.note(
            f"The tokenizer dialect {dialect!r} of this GGUF file is not known here: text may be cut"
            " into tokens a little differently than the model was trained on."
        )
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


@cache
def _alphabet() -> dict[int, str]:
    """How byte-level BPE spells a byte: printable ones as themselves, the others as characters from 256 on."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + place) for place, byte in enumerate(others)}


def _spell(token: str) -> str:
    """A token in the byte alphabet; most are in it already."""
    spelling = _alphabet()
    if token.isascii() and token.isprintable() and " " not in token:
        return token
    if set(token) <= set(spelling.values()):
        return token
    return "".join(spelling[byte] for byte in token.encode("utf-8"))
