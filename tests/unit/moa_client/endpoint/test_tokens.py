"""The texts and bytes of tokens add up to the text that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from moa_client.endpoint.tokens import ToldTokens
from moa_shared.sampling.settings import TokenChances

END = 300  # a special token without text


class Bytes:
    """A token is a byte."""

    special_tokens: Mapping[str, int] = {"<end>": END}

    def token_bytes(self, token: int) -> bytes:
        return bytes([token])


BYTES: Any = Bytes()


def decode(tokens: Sequence[int]) -> str:
    return bytes(token for token in tokens if token != END).decode("utf-8", "replace")


def told(tokens: Sequence[int], text: str) -> ToldTokens:
    taken = ToldTokens(BYTES, decode)
    taken.take(tokens, [TokenChances(-float(number)) for number, _ in enumerate(tokens)])
    taken.finish(text)
    return taken


def text_of(taken: ToldTokens) -> str:
    return "".join(token.text for token in taken.tokens)


@given(st.text(max_size=8), st.integers(0, 8))
def test_texts_and_bytes_add_up_wherever_the_text_is_cut(text: str, length: int) -> None:
    tokens, sent = [*text.encode(), END], text[:length]
    taken = told(tokens, sent)
    assert len(taken) == len(taken.tokens) == len(tokens)
    assert text_of(taken) == sent
    assert b"".join(token.data for token in taken.tokens).decode() == sent
    starts = [len("".join(token.text for token in taken.tokens[:number])) for number, _ in enumerate(tokens)]
    assert [token.start for token in taken.tokens] == starts
    assert [token.chance for token in taken.tokens] == [-float(number) for number, _ in enumerate(tokens)]


def test_a_character_s_text_comes_with_its_last_token_and_its_bytes_with_each() -> None:
    taken = told("aé".encode(), "aé")
    assert [(token.text, token.data) for token in taken.tokens] == [("a", b"a"), ("", b"\xc3"), ("é", b"\xa9")]
    assert text_of(told([0x61, 0xFF, 0x62], "a�b")) == "a�b"


def test_a_space_that_the_tokenizer_leaves_out_is_left_out() -> None:
    taken = ToldTokens(BYTES, lambda tokens: decode(tokens).removeprefix(" "))
    taken.take(b" a", [TokenChances(-2.0), TokenChances(-1.0, (0x62, 0xC3), (-0.5, -0.75))])
    taken.finish("a")
    assert (text_of(taken), [token.chance for token in taken.tokens]) == ("a", [-2.0, -1.0])
    assert taken.tokens[1].likeliest == ((b"b", -0.5), (b"\xc3", -0.75))
