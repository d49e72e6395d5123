from __future__ import annotations

import torch
from moa_shared.drafter import DrafterConfig
from moa_training.objective.layer_memory import FastDrafter
from moa_training.objective.network import TrainingDrafter


def pair(lsa_heads: int = 4, lsa_kv_heads: int = 2) -> tuple[TrainingDrafter, FastDrafter, torch.Tensor]:
    config = DrafterConfig(
        vocab_size=20, hidden_size=24, target_layers=5, target_heads=4, target_kv_heads=2, target_head_dim=8,
        sa_kv_heads=2, sa_mlp=32, ca_kv_heads=2, ca_mlp=32, lsa_heads=lsa_heads, lsa_kv_heads=lsa_kv_heads, lsa_mlp=40,
    )  # fmt: skip
    torch.manual_seed(0)
    plain, fast = TrainingDrafter(config), FastDrafter(config)
    for weight in plain.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    fast.load_state_dict(plain.state_dict())
    return plain, fast, torch.randn(2, 7, 5, 32)


def test_memory_and_gradients_are_those_of_the_plain_form() -> None:
    for heads in ((4, 2), (2, 2), (8, 1)):
        plain, fast, kv = pair(*heads)
        for drafter in (plain, fast):
            drafter.memory(kv).square().sum().backward()
        torch.testing.assert_close(fast.memory(kv), plain.memory(kv), rtol=1e-5, atol=1e-5)
        for (name, expected), got in zip(plain.named_parameters(), fast.parameters(), strict=True):
            assert (expected.grad is None) == (got.grad is None), name
            if expected.grad is not None and got.grad is not None:
                torch.testing.assert_close(got.grad, expected.grad, rtol=1e-4, atol=1e-4 * float(expected.grad.norm()))


def test_a_share_of_the_tokens_carries_gradients_and_all_have_their_rows() -> None:
    plain, fast, kv = pair()
    fast.gradient_share = 0.25
    rows = fast.memory(kv)
    torch.testing.assert_close(rows, plain.memory(kv), rtol=1e-5, atol=1e-5)
    rows.square().sum().backward()
    partial = fast.layer_self_attention.mlp.up_proj.weight.grad
    plain.memory(kv).square().sum().backward()
    full = plain.layer_self_attention.mlp.up_proj.weight.grad
    assert partial is not None
    assert full is not None
    assert 0 < float(partial.norm()) < float(full.norm())
    fast.eval()
    assert fast.memory(kv).shape == rows.shape
