"""Orders to the other ranks come out of their numbers as they went in."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_server.verifier.group import Move, Order, Read, Stop, decode, encode
from moa_server.verifier.pool import PAGE_ROWS, BatchPart, Run
from moa_server.verifier.rank import Rank, check_shares, rank_of
from moa_shared.errors import ConfigError
from moa_shared.tree import add_depths

pytestmark = pytest.mark.torch

NUMBERS = st.lists(st.integers(0, 1 << 40), max_size=5)


@st.composite
def parts(draw: st.DrawFn) -> BatchPart:
    """A conversation's rows, in a tree or not, with just the pages that they need."""
    count = draw(st.integers(1, 5))
    tokens = draw(st.lists(st.integers(0, 1 << 20), min_size=count, max_size=count))
    prefix = draw(st.integers(0, 200))
    pages = draw(st.lists(st.integers(1, 1 << 20), min_size=-(-(prefix + count) // PAGE_ROWS)))
    used = pages[: -(-(prefix + count) // PAGE_ROWS)]
    if draw(st.booleans()):
        return BatchPart(tokens, list(range(count)), prefix, used)
    parents = [draw(st.integers(-1, row - 1)) for row in range(count)]
    return BatchPart(tokens, depths_of(parents), prefix, used, parents)


def depths_of(parents: Sequence[int]) -> list[int]:
    depths: list[int] = []
    add_depths(depths, parents)
    return [depth - 1 for depth in depths]


@st.composite
def orders(draw: st.DrawFn) -> Order:
    match draw(st.integers(0, 3)):
        case 0:
            some = draw(st.lists(parts(), min_size=1, max_size=4))
            return Run(some, draw(st.integers(0, 64)), draw(NUMBERS), draw(NUMBERS))
        case 1:
            count = draw(st.integers(0, 4))
            return Move(list(range(count)), list(range(7, 7 + count)))
        case 2:
            return Read(draw(NUMBERS))
    return Stop()


@given(order=orders())
def test_an_order_survives_its_numbers(order: Order) -> None:
    assert decode(encode(order)) == order


LAUNCHED = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "gpu.example",
    "MASTER_PORT": "29500",
}
SMOLLM2 = {"model_type": "llama", "num_attention_heads": 9, "num_key_value_heads": 3}


def test_torchrun_says_the_rank() -> None:
    assert rank_of(LAUNCHED) == Rank(3, 4, 1, 2)


@pytest.mark.parametrize(
    "environment",
    [{}, {"WORLD_SIZE": "4", "RANK": "3"}, {**LAUNCHED, "WORLD_SIZE": "1", "RANK": "0"}],
    ids=["alone", "of something else", "one process"],
)
def test_a_process_by_itself_has_no_rank(environment: dict[str, str]) -> None:
    assert rank_of(environment) is None


def test_heads_must_be_split_evenly() -> None:
    check_shares(SMOLLM2, "smol", 3)
    check_shares({"model_type": "llama", "num_attention_heads": 8}, "gpt", 8)
    with pytest.raises(ConfigError, match="processes cannot share them evenly"):
        check_shares(SMOLLM2, "smol", 2)


def test_other_families_are_not_shared() -> None:
    gemma = {"model_type": "gemma2", "num_attention_heads": 8}
    check_shares(gemma, "gemma", 1)
    with pytest.raises(ConfigError, match="gemma is of the family gemma"):
        check_shares(gemma, "gemma", 2)
