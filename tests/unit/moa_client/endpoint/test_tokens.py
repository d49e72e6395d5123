"""The texts of tokens add up to the text that they make."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from moa_client.endpoint.tokens import ToldTokens
from moa_shared.sampling.settings import TokenChances

END = 300  # a special token without text
BYTES: Any = SimpleNamespace(token_bytes=lambda token: bytes([token]))


def decode(tokens: Sequence[int]) -> str:
    return bytes(token for token in tokens if token != END).decode("utf-8", "replace")


@given(st.text(max_size=8), st.integers(0, 8))
def test_texts_add_up_wherever_the_text_is_cut(text: str, length: int) -> None:
    tokens, taken = [*text.encode(), END], ToldTokens(BYTES, decode)
    taken.take(tokens, [TokenChances(-float(number)) for number, _ in enumerate(tokens)])
    taken.finish(text[:length])
    assert "".join(token.text for token in taken.tokens) == text[:length]
    assert [token.start for token in taken.tokens] == [0, *accumulate(len(token.text) for token in taken.tokens)][:-1]
    assert [token.chance for token in taken.tokens] == [-float(number) for number, _ in enumerate(tokens)]


def test_a_character_s_text_comes_with_its_last_token_and_what_the_tokenizer_leaves_out_is_left_out() -> None:
    taken = ToldTokens(BYTES, lambda tokens: decode(tokens).removeprefix(" "))
    taken.take(" aé".encode(), [TokenChances(-1.0, (0x62, 0xC3), (-0.5, -0.75))] * 4)
    taken.finish("aé")
    assert [token.text for token in taken.tokens] == ["", "a", "", "é"]
    assert taken.tokens[1].likeliest == ((b"b", -0.5), (b"\xc3", -0.75))
