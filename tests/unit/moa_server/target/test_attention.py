from __future__ import annotations

import pytest
import torch
from moa_server.target.attention import grouped_attention
from torch import nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward


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
