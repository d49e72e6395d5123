from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_shared.prefix_hash import PrefixHashes

tokens_strategy = st.lists(st.integers(0, 2**32 - 1), max_size=20)


@given(tokens_strategy, tokens_strategy, st.integers(0, 20))
def test_a_hash_depends_on_the_prefix_alone(tokens: list[int], others: list[int], length: int) -> None:
    length = min(length, len(tokens))
    hashes = PrefixHashes(tokens)
    before = hashes.at(length)
    hashes.crop(length)
    hashes.extend(others)
    assert hashes.at(length) == before == PrefixHashes(tokens[:length]).at(length)
    assert len(hashes) == length + len(others)


@given(tokens_strategy, tokens_strategy)
def test_other_tokens_hash_otherwise(a: list[int], b: list[int]) -> None:
    assert (PrefixHashes(a).at(len(a)) == PrefixHashes(b).at(len(b))) == (a == b)


def test_the_hash_is_pinned() -> None:
    assert PrefixHashes([1, 2, 3]).at(0) == 0
    assert f"{PrefixHashes([1, 2, 3]).at(3):016x}" == "dc65da7dc13ba17a"


@pytest.mark.parametrize("length", [-1, 3])
def test_unknown_prefixes_are_an_error(length: int) -> None:
    with pytest.raises(IndexError, match="2 are known"):
        PrefixHashes([1, 2]).at(length)
