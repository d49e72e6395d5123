"""Fused and quantised products are near the plain ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from moa_shared.drafter.linear import Int8Linear, compute_dtype, make_linear
from moa_shared.errors import ConfigError
from torch import nn

from tests.unit.moa_shared.drafter.test_state import DECODERS, distance, filled, make_decoder

ROWS = torch.randn(5, 64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-6), (torch.bfloat16, 0.01), (torch.int8, 0.02)])
@pytest.mark.parametrize("bias", [True, False])
def test_layers_with_one_input_are_one_product(dtype: torch.dtype, error: float, bias: bool) -> None:
    torch.manual_seed(2)
    layers = [nn.Linear(64, width, bias=bias).requires_grad_(False) for width in (96, 32, 32)]
    with torch.inference_mode():
        ours = make_linear(layers, dtype)(ROWS.to(compute_dtype(dtype))).float()
        plain = torch.cat([layer(ROWS) for layer in layers], dim=-1)
    assert float((ours - plain).norm() / plain.norm()) < error


@pytest.mark.parametrize("reused_layers", [0, 2])
def test_drafts_in_int8_are_near_those_in_float32(reused_layers: int) -> None:
    decoder = make_decoder(reused_layers, torch.int8)
    low, high = filled(decoder), filled(DECODERS[reused_layers])
    for state in (low, high):
        state.begin()
    ours, theirs = (state.expand([7, 8], [-1, -1]) for state in (low, high))
    assert ours.dtype == np.float32
    assert distance(ours, theirs) < 0.05


def test_a_device_without_int8_products_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise RuntimeError("no engine")

    monkeypatch.setattr(torch, "quantize_per_channel", none)
    with pytest.raises(ConfigError, match=r"no int8 kernels.*--dtype bf16"):
        Int8Linear(torch.randn(4, 4), None)
