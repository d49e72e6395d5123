"""Hashes of prefixes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_shared.protocol.prefix_hash import PrefixHashes

from tests.support.counted import TouchedTokens

tokens_strategy = st.lists(st.integers(0, 2**32 - 1), max_size=80)


def in_pieces(*pieces: list[int]) -> PrefixHashes:
    hashes = PrefixHashes()
    for piece in pieces:
        hashes.extend(piece)
    return hashes


@given(tokens_strategy, tokens_strategy, st.integers(0, 80))
def test_a_hash_depends_on_the_prefix_alone(tokens: list[int], others: list[int], length: int) -> None:
    length = min(length, len(tokens))
    hashes = PrefixHashes(tokens)
    before = hashes.at(length)
    hashes.crop(length)
    hashes.extend(others)
    assert hashes.at(length) == before == PrefixHashes(tokens[:length]).at(length)
    assert len(hashes) == length + len(others)


def test_the_hash_is_pinned() -> None:
    assert (PrefixHashes([1, 2, 3]).at(0), f"{PrefixHashes([1, 2, 3]).at(3):016x}") == (0, "32937daf9cab1e8a")


@given(tokens_strategy | st.just([(7919 * position) % 49_152 for position in range(400)]), st.integers(0, 400))
def test_however_tokens_come_the_hashes_are_the_same(tokens: list[int], cut: int) -> None:
    singly, in_two = in_pieces(*([token] for token in tokens)), in_pieces(tokens[:cut], tokens[cut:])
    for length in range(len(tokens) + 1):
        assert singly.at(length) == in_two.at(length)


def test_a_long_prompt_is_hashed_without_looking_at_its_tokens_one_by_one() -> None:
    tokens = TouchedTokens(131_072)
    assert (len(PrefixHashes(tokens)), tokens.touched) == (131_072, 0)


@pytest.mark.parametrize("length", [-1, 3])
def test_unknown_prefixes_are_an_error(length: int) -> None:
    with pytest.raises(IndexError, match="2 are known"):
        PrefixHashes([1, 2]).at(length)
