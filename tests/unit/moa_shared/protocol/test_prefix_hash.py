import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_shared.protocol.prefix_hash import PrefixHashes

from tests.support.counted import TouchedTokens

tokens_strategy = st.lists(st.integers(0, 2**32 - 1), max_size=80)


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
    assert PrefixHashes([1, 2, 3]).at(0) == 0
    assert f"{PrefixHashes([1, 2, 3]).at(3):016x}" == "32937daf9cab1e8a"


@given(tokens_strategy, st.integers(0, 80))
def test_however_tokens_come_the_hashes_are_the_same(tokens: list[int], cut: int) -> None:
    one_by_one = PrefixHashes()
    for token in tokens:
        one_by_one.extend([token])
    in_two = PrefixHashes(tokens[:cut])
    in_two.extend(tokens[cut:])
    for length in range(len(tokens) + 1):
        assert one_by_one.at(length) == in_two.at(length) == PrefixHashes(tokens).at(length)


def test_long_runs_hash_as_single_tokens_do() -> None:
    tokens = [(7919 * position) % 49_152 for position in range(400)]
    one_by_one = PrefixHashes()
    for token in tokens:
        one_by_one.extend([token])
    for cut in range(0, 400, 40):
        in_two = PrefixHashes(tokens[:cut])
        in_two.extend(tokens[cut:])
        assert [in_two.at(length) for length in range(401)] == [one_by_one.at(length) for length in range(401)]


def test_a_long_prompt_is_hashed_without_looking_at_its_tokens_one_by_one() -> None:
    tokens = TouchedTokens(131_072)
    assert len(PrefixHashes(tokens)) == 131_072
    assert tokens.touched == 0


@pytest.mark.parametrize("length", [-1, 3])
def test_unknown_prefixes_are_an_error(length: int) -> None:
    with pytest.raises(IndexError, match="2 are known"):
        PrefixHashes([1, 2]).at(length)
