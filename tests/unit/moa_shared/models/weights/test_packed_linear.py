from __future__ import annotations

import copy

import pytest
import torch
from moa_shared.models.weights import loading
from moa_shared.models.weights.loading import PackedLinear, can_pack, pack_linears
from torch import nn

pytestmark = pytest.mark.torch

needs_kernels = pytest.mark.skipif(not can_pack(), reason="this CPU has no bfloat16 kernels for packed weights")


def network(dtype: torch.dtype = torch.bfloat16) -> nn.Module:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(33, 97), nn.SiLU(), nn.Linear(97, 576, bias=False))
    return nn.Sequential(inner, nn.Linear(576, 1536)).to(dtype).requires_grad_(False)


@needs_kernels
@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8, 16, 31, 62, 63, 128, 257])
def test_the_products_are_the_same_to_the_last_bit(rows: int) -> None:
    plain, packed = network(), network()
    assert pack_linears(packed) == 3
    data = torch.randn(1, rows, 33, dtype=torch.bfloat16)
    assert torch.equal(packed(data), plain(data))


@needs_kernels
def test_the_layers_keep_their_names_and_sizes() -> None:
    packed = network()
    pack_linears(packed)
    last = packed.get_submodule("1")
    assert isinstance(last, PackedLinear)
    assert str(last) == "PackedLinear(in_features=576, out_features=1536, bias=True)"


def test_what_can_be_trained_or_is_not_bfloat16_stays() -> None:
    for module in (network(torch.float32), network().requires_grad_(True)):
        before = copy.deepcopy(module)
        assert pack_linears(module) == 0
        assert str(module) == str(before)


def test_nothing_changes_without_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "can_pack", lambda: False)
    module = network()
    assert pack_linears(module) == 0
    assert isinstance(module.get_submodule("1"), nn.Linear)
