from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from moa_server.target.attention import attention_mask, grouped_attention
from torch import nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

any_parents = st.integers(1, 12).flatmap(lambda count: st.tuples(*(st.integers(-1, node - 1) for node in range(count))))


class Heads(nn.Module):
    num_key_value_groups = 3
    is_causal = True


@pytest.mark.parametrize(("queries", "rows", "masked"), [(1, 9, False), (5, 5, False), (4, 9, True), (1, 9, True)])
def test_grouped_heads_give_what_repeated_heads_give(queries: int, rows: int, masked: bool) -> None:
    torch.manual_seed(0)
    query = torch.randn(1, 6, queries, 8)
    key, value = torch.randn(1, 2, rows, 2, 8).unbind(3)  # strided, as the cache gives them
    mask = None
    if masked:
        mask = torch.where(torch.rand(1, 1, queries, rows) < 0.4, float("-inf"), 0.0)
        mask[..., 0] = 0.0
    ours, _ = grouped_attention(Heads(), query, key, value, mask, scaling=0.3)
    repeated = (key.repeat_interleave(3, 1), value.repeat_interleave(3, 1))
    single = Heads()
    single.num_key_value_groups = 1
    expected, _ = sdpa_attention_forward(single, query, *repeated, mask, scaling=0.3)
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


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
