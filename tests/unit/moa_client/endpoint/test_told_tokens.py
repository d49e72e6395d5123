"""The texts and bytes of tokens add up to the text that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st
from moa_client.endpoint.told_tokens import ToldTokens
from moa_shared.sampling.chances import TokenChances

END = 300  # a special token without text


class Bytes:
    """A token is a byte; implements `Vocabulary`."""

    special_tokens: Mapping[str, int] = {"<end>": END}

    def token_bytes(self, token: int) -> bytes:
        return bytes([token])


def decode(tokens: Sequence[int]) -> str:
    return bytes(token for token in tokens if token != END).decode("utf-8", "replace")


def told(tokens: Sequence[int], text: str | None = None) -> ToldTokens:
    taken = ToldTokens(Bytes(), decode)
    taken.take(tokens, [TokenChances(-float(number)) for number, _ in enumerate(tokens)])
    taken.finish(text)
    return taken


@given(st.text(max_size=8), st.integers(0, 8))
def test_texts_and_bytes_add_up_wherever_the_text_is_cut(text: str, length: int) -> None:
    tokens, sent = [*text.encode(), END], text[:length]
    taken = told(tokens, sent)
    assert len(taken) == len(taken.tokens) == len(tokens)
    assert taken.text == sent
    assert b"".join(token.data for token in taken.tokens).decode() == sent
    starts = [len("".join(token.text for token in taken.tokens[:number])) for number, _ in enumerate(tokens)]
    assert [token.start for token in taken.tokens] == starts
    assert [token.chance for token in taken.tokens] == [-float(number) for number, _ in enumerate(tokens)]


def test_a_character_s_text_comes_with_its_last_token_and_its_bytes_with_each() -> None:
    taken = told("aé".encode())
    assert [(token.text, token.data) for token in taken.tokens] == [("a", b"a"), ("", b"\xc3"), ("é", b"\xa9")]


def test_bytes_that_are_no_text_count_as_what_is_shown_of_them() -> None:
    taken = told([0x61, 0xFF, 0x62])
    assert taken.text == "a�b"
    assert b"".join(token.data for token in taken.tokens).decode() == "a�b"


def test_a_space_that_the_tokenizer_leaves_out_is_left_out() -> None:
    taken = ToldTokens(Bytes(), lambda tokens: decode(tokens).removeprefix(" "))
    taken.fill(b" a", [None, None])
    assert (taken.text, [token.chance for token in taken.tokens]) == ("a", [None, None])


def test_the_likeliest_are_bytes_too() -> None:
    taken = ToldTokens(Bytes(), decode)
    taken.fill([0x61], [TokenChances(-1.0, (0x62, 0xC3), (-0.5, -0.75))])
    assert taken.tokens[0].likeliest == ((b"b", -0.5), (b"\xc3", -0.75))
