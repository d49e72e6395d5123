from pathlib import Path
from unittest.mock import Mock

import pytest
from moa_shared.errors import ModelSourceError
from moa_shared.models import load_tokenizer, resolve
from moa_shared.models.storage.gguf_vocabulary import _SPLITS
from moa_shared.models.tokenizer import Tokenizer
from moa_shared.programs.progress import Progress
from transformers import AutoTokenizer
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

from tests.support.tiny_gguf import SPECIALS, TOKENS, GgufWriter

pytestmark = pytest.mark.torch

TEXTS = ["\n\n1", "hi 2024 hi!", "It's hi\r\n\r\n  x\u00a0y", "<|im_start|>hi<|im_end|>", "é日本 1234567", "a  hi\t"]


def read(path: Path, cache: Path) -> Tokenizer:
    return load_tokenizer(resolve(str(path), cache))


@pytest.mark.parametrize("pre", ["gpt-2", "default", "llama-bpe", "qwen2", "qwen35", "tekken", "gpt-4o", "dbrx"])
def test_tokens_are_those_of_transformers(write_gguf: GgufWriter, cache: Path, pre: str) -> None:
    path = write_gguf(pre=pre)
    ours, theirs = read(path, cache), AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    for text in TEXTS:
        tokens = ours.encode(text)
        assert tokens == theirs(text, add_special_tokens=False).input_ids
        assert ours.decode(tokens) == theirs.decode(tokens) == text
    assert ours.eos_token_id == theirs.eos_token_id == 2


def test_the_expressions_are_those_of_transformers() -> None:
    named = {name: split for name, split in _SPLITS.items() if split is not None}
    assert named == {name: GGUF_PRE_TOKENIZER_SPLITS[str(name)] for name in named}


def test_text_is_split_as_the_header_says(write_gguf: GgufWriter, cache: Path) -> None:
    smollm, plain = (read(write_gguf(f"{pre}.gguf", pre=pre), cache) for pre in ("smollm", "gpt-2"))
    assert smollm.encode("\n\n1") == [TOKENS.index("ĊĊ"), TOKENS.index("1")]
    assert plain.encode("\n\n1") == [TOKENS.index("Ċ"), TOKENS.index("Ċ"), TOKENS.index("1")]
    for tokenizer in (smollm, plain):
        assert tokenizer.encode("<|im_start|>hi<|im_end|>") == [1, TOKENS.index("hi"), 2]
        assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}]) == "user: hi\n"


def test_a_raw_text_begins_with_bos_where_the_header_says_so(write_gguf: GgufWriter, cache: Path) -> None:
    hi = TOKENS.index("hi")
    for pre, said, bos in (
        ("smollm", None, []), ("smollm", True, [1]), ("llama-bpe", None, [1]), ("llama-bpe", False, []),
    ):  # fmt: skip
        tokenizer = read(write_gguf(f"{pre}-{said}.gguf", pre=pre, add_bos=said), cache)
        assert tokenizer.encode("hi") == [hi]
        assert (tokenizer.with_bos([hi]), tokenizer.with_bos([1, hi]), tokenizer.with_bos([])) == (
            [*bos, hi], [1, hi], bos,
        )  # fmt: skip


def test_a_template_for_tools_comes_along(write_gguf: GgufWriter, cache: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    tokenizer = read(write_gguf(template=named), cache)
    assert (tokenizer.chat_template, tokenizer.with_tools().chat_template) == ("plain", "tools")


def test_an_unknown_dialect_is_said(write_gguf: GgufWriter, cache: Path) -> None:
    progress = Mock(wraps=Progress())
    resolve(str(write_gguf(pre="volapuk")), cache, progress)
    assert ["volapuk" in call.args[0] for call in progress.note.call_args_list] == [True]


def test_tokens_of_the_user_stay_whole_and_are_no_specials(write_gguf: GgufWriter, cache: Path) -> None:
    tokens = [*TOKENS, "<think>", "<«end»▁>"]
    tokenizer = read(write_gguf(tokens=tokens, user_defined=("<think>", "<«end»▁>")), cache)
    text = "hi<think>hi<«end»▁>"
    assert tokenizer.encode(text) == [tokens.index(part) for part in ("hi", "<think>", "hi", "<«end»▁>")]
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=True) == text


SENTENCEPIECE = ["<unk>", *SPECIALS[1:], *(f"<0x{byte:02X}>" for byte in range(256)), *"▁hi", "hi", "▁hi"]


def test_sentencepiece_is_as_llama_cpp_has_it(write_gguf: GgufWriter, cache: Path) -> None:
    path = write_gguf(tokenizer="llama", tokens=SENTENCEPIECE)
    ours, theirs = read(path, cache), AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    for text in ("hi hi", "é", "h<|im_start|>"):
        assert ours.encode(text) == theirs(text, add_special_tokens=False).input_ids
        assert ours.decode(ours.encode(text)) == text
    space = SENTENCEPIECE.index("▁")  # transformers puts none before a space, nor after a special token
    assert ours.encode(" h") == [space, space, SENTENCEPIECE.index("h")]
    assert ours.encode("<|im_start|>hi") == [1, SENTENCEPIECE.index("▁hi")]
    assert SENTENCEPIECE.index("▁hi") in ours.encode("hi hi")
    assert ours.with_bos([5]) == [1, 5]  # as llama.cpp has it, where the header does not say


GEMMA_4 = ["<pad>", *SPECIALS, *(f"<0x{byte:02X}>" for byte in range(256)), *"▁hi\n", "hi", "▁hi", "▁▁", "\n\n"]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("hi hi", ["hi", "▁hi"]),
        ("  hi\n\n\nhi", ["▁▁", "hi", "\n\n", "\n", "hi"]),
        ("é<|im_start|>hi", ["<0xC3>", "<0xA9>", "<|im_start|>", "hi"]),
        ("h i", ["h", "▁", "i"]),
    ],
)
def test_gemma_4_joins_by_the_merges_of_its_file(
    write_gguf: GgufWriter, cache: Path, text: str, parts: list[str]
) -> None:
    """As llama.cpp has it: tried there with these texts."""
    merges = ["h i", "▁ ▁", "▁ hi", "\n \n"]
    tokenizer = read(write_gguf(tokenizer="gemma4", tokens=GEMMA_4, merges=merges), cache)
    assert tokenizer.encode(text) == [GEMMA_4.index(part) for part in parts]
    assert tokenizer.decode(tokenizer.encode("  hi é\n\n")) == "  hi é\n\n"
    assert tokenizer.with_bos([9])[1:] == [9]


def test_sentencepiece_without_a_space_in_front(write_gguf: GgufWriter, cache: Path) -> None:
    tokens = [*SENTENCEPIECE, "\n\n", "  "]
    path = write_gguf(tokenizer="llama", tokens=tokens, add_space_prefix=False, user_defined=("\n\n", "  "))
    tokenizer = read(path, cache)
    parts = ("hi", "▁hi", "\n\n", "  ", "hi", "▁hi")
    assert tokenizer.encode("hi hi\n\n  hi hi") == [tokens.index(part) for part in parts]
    assert tokenizer.decode(tokenizer.encode(" hi\n\n  hi é")) == " hi\n\n  hi é"


def test_sentencepiece_joins_by_score(write_gguf: GgufWriter, cache: Path) -> None:
    letters = [*SENTENCEPIECE[:259], "▁", "a", "b", "c"]
    for pieces, expected in ((["ab", "bc", "abc"], ["▁", "abc"]), (["bc", "ab"], ["▁", "a", "bc"])):
        tokens = [*letters, *pieces]  # scores fall with the number
        path = write_gguf(f"{pieces[0]}.gguf", tokenizer="llama", tokens=tokens)
        assert read(path, cache).encode("abc") == [tokens.index(part) for part in expected]


@pytest.mark.parametrize(
    "fault",
    [
        {"merges": ["no such"]},
        {"merges": [1, 2]},
        {"tokenizer": "gemma4", "tokens": GEMMA_4, "merges": []},
        {"tokenizer": "llama", "tokens": SENTENCEPIECE, "scores": False},
    ],
)
def test_a_vocabulary_that_makes_no_sense(write_gguf: GgufWriter, cache: Path, fault: dict[str, object]) -> None:
    with pytest.raises(ModelSourceError, match="has a vocabulary that makes no sense"):
        resolve(str(write_gguf(**fault)), cache)
