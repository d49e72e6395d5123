from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from moa_server.target.visibility import attention_mask, tail_depths
from moa_shared.errors import TreeError

any_parents = st.integers(1, 12).flatmap(lambda count: st.tuples(*(st.integers(-1, node - 1) for node in range(count))))


@given(any_parents, st.integers(0, 5))
def test_a_row_sees_the_prefix_its_ancestors_and_itself(parents: tuple[int, ...], prefix: int) -> None:
    mask = attention_mask(prefix, parents, len(parents), torch.float32)
    if len(parents) == 1:
        assert mask is None
        return
    assert mask is not None
    assert mask.shape == (1, 1, len(parents), prefix + len(parents))
    for node in range(len(parents)):
        seen = set(range(prefix))
        step = node
        while step >= 0:
            seen.add(prefix + step)
            step = parents[step]
        assert {int(column) for column in (mask[0, 0, node] == 0).nonzero()[:, 0]} == seen
        assert bool(torch.isneginf(mask[0, 0, node][mask[0, 0, node] != 0]).all())


@given(any_parents)
def test_depth_is_the_number_of_ancestors(parents: tuple[int, ...]) -> None:
    depths = tail_depths(parents)
    for node, parent in enumerate(parents):
        assert depths[node] == (0 if parent < 0 else depths[parent] + 1)


def test_no_mask_where_none_is_needed() -> None:
    assert attention_mask(9, None, 1, torch.float32) is None
    assert attention_mask(0, None, 5, torch.float32) is None


@given(st.integers(1, 4), st.integers(2, 6))
def test_a_chain_is_the_tree_of_a_chain(prefix: int, count: int) -> None:
    chain = attention_mask(prefix, None, count, torch.bfloat16)
    tree = attention_mask(prefix, list(range(-1, count - 1)), count, torch.bfloat16)
    assert chain is not None
    assert tree is not None
    assert torch.equal(chain, tree)


@pytest.mark.parametrize("parents", [[0], [-1, 1], [-1, 0, 5], [-2]])
def test_a_parent_behind_its_child_is_refused(parents: list[int]) -> None:
    with pytest.raises(TreeError, match="expected a number from -1 to"):
        tail_depths(parents)
