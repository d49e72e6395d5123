from __future__ import annotations

from pathlib import Path

import pytest
from moa_shared.errors import ModelSourceError
from moa_shared.models import load_tokenizer, resolve
from moa_shared.models.gguf.configuration import special_ids
from moa_shared.models.gguf.header import GgufHeader
from moa_shared.models.sources.generation import end_of_text

from tests.support.tiny_gguf import TOKENS, GgufWriter

WORDS = ["<unk>", "<s>", "</s>", "hi"]


def header(*tokens: str, **ids: int) -> GgufHeader:
    keys = {f"tokenizer.ggml.{name}_token_id": value for name, value in ids.items()}
    return GgufHeader(Path("tiny.gguf"), {"tokenizer.ggml.tokens": [*WORDS, *tokens], **keys}, {})


@pytest.mark.parametrize(
    ("tokens", "ids", "ends"),
    [
        ((), {"eos": 2}, 2),
        ((), {}, 2),  # by its spelling
        (("<eos>", "<end_of_turn>"), {"eos": 4}, [4, 2, 5]),  # Gemma 2 and 3
        (("<|end_of_text|>", "<|eot_id|>", "<|eom_id|>"), {"eos": 5}, [5, 2, 4, 6]),  # Llama 3
        (("<|endoftext|>", "<|end|>", "<|user|>"), {"eos": 4}, [4, 2, 5]),  # Phi-3 and 4
        (("<|endoftext|>", "<|im_end|>"), {"eos": 5}, [5, 2, 4]),  # Qwen
        (("stop", "pause"), {"eos": 3, "eot": 4, "eom": 5}, [3, 4, 5, 2]),
        (("<|end|>", "<|return|>", "<|call|>"), {"eos": 5}, [5, 2, 6]),  # gpt-oss
        (("<|tool_response>", "<turn|>"), {"eos": 5}, [5, 2, 4]),  # Gemma 4
    ],
)
def test_ends_are_those_of_llama_cpp(tokens: tuple[str, ...], ids: dict[str, int], ends: int | list[int]) -> None:
    assert special_ids(header(*tokens, **ids))["eos_token_id"] == ends


def test_a_tag_of_html_ends_nothing() -> None:
    metadata = header("<eos>", eos=4).metadata
    as_html = GgufHeader(Path("tiny.gguf"), {**metadata, "tokenizer.ggml.token_type": [3, 3, 4, 1, 3]}, {})
    assert special_ids(as_html)["eos_token_id"] == 4


def test_a_vocabulary_without_an_end() -> None:
    without = GgufHeader(Path("tiny.gguf"), {"tokenizer.ggml.tokens": ["a", "b"]}, {})
    assert special_ids(without) == {}


def test_other_special_tokens() -> None:
    found = special_ids(header(bos=1, eos=2, padding=2, unknown=0))
    assert found == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2, "unk_token_id": 0}


@pytest.mark.parametrize("none", [-1, 2**32 - 1, 2**64 - 1])
def test_minus_one_is_no_token(none: int) -> None:
    assert special_ids(header(bos=1, eos=none, padding=none, eot=none)) == {"bos_token_id": 1, "eos_token_id": 2}


@pytest.mark.parametrize("value", [-2, 4])
def test_an_id_that_is_no_token(value: int) -> None:
    with pytest.raises(ModelSourceError, match=rf"says tokenizer.ggml.eot_token_id = {value}, but has 4 tokens"):
        special_ids(header(eot=value))


def test_an_answer_ends_at_each_of_them(write_gguf: GgufWriter, cache: Path) -> None:
    files = resolve(str(write_gguf(tokens=[*TOKENS, "<end_of_turn>"])), cache)
    ends = end_of_text(files, load_tokenizer(files).eos_token_id)
    assert ends == {0, 2, len(TOKENS)}  # <|endoftext|>, <|im_end|> and the turn's
