from __future__ import annotations

import torch
from moa_shared.drafter.layers.torch_layers import attend
from moa_training.objective.split_attention import attend_with_own


def test_it_is_attention_over_all_columns_under_a_mask() -> None:
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    batch, heads, kv_heads, groups, rows, own, columns, dim = 2, 4, 2, 5, 3, 2, 7, 6
    queries, shared = draw(batch, heads, groups, rows, dim), (draw(2, kv_heads, columns, dim), draw(2, 2, columns, dim))
    near = draw(batch, kv_heads, groups, own, dim), draw(batch, kv_heads, groups, own, dim)
    visible = torch.rand(batch, groups, columns, generator=generator) < 0.5
    visible[:, 0] = False  # a group that sees itself only
    everything = [torch.cat((far, part.flatten(2, 3)), 2) for far, part in zip(shared, near, strict=True)]
    of_group = torch.eye(groups, dtype=torch.bool).repeat_interleave(own, 1).expand(batch, -1, -1)
    mask = torch.cat((visible, of_group), -1).repeat_interleave(rows, 1)
    expected = attend(queries.flatten(2, 3), everything[0], everything[1], mask[:, None])
    found = attend_with_own(queries, shared, visible, near)
    assert torch.allclose(found.flatten(1, 2), expected, atol=1e-6)
