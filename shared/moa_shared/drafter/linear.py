"""Linear layers for inference, in the form that is fastest for a few rows on this device.

A draft step reads every weight once, so what it costs is the bytes of its weights: int8 halves them. No state beyond
weights; nothing here can be trained or saved.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn import functional as F

from moa_shared.errors import ConfigError
from moa_shared.models.packed_linear import PackedLinear, can_pack

Linear = Callable[[torch.Tensor], torch.Tensor]  # [rows, inputs] to [rows, outputs]


class Int8Linear:
    """Weights in int8 with a scale for each output; activations float32, rounded to int8 on the way (one scale a call).

    Args:
        weight: [outputs, inputs] of any float type.

    Raises:
        ConfigError: torch has no int8 kernels for this processor.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        wide = weight.detach().float()
        scales = (wide.abs().amax(dim=1) / 127).clamp_min(1e-12).double()
        try:
            with warnings.catch_warnings():  # quantised tensors are to go; the products themselves stay
                warnings.simplefilter("ignore")
                quantised = torch.quantize_per_channel(
                    wide, scales, torch.zeros(len(scales), dtype=torch.long), 0, torch.qint8
                )
                self._packed = torch.ops.quantized.linear_prepack(quantised, None if bias is None else bias.float())
        except (RuntimeError, AttributeError):
            raise ConfigError(
                "This device has no int8 kernels for drafting.", hint="Give --dtype bf16, or float32."
            ) from None

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """[rows, inputs] float32 to [rows, outputs] float32."""
        product: torch.Tensor = torch.ops.quantized.linear_dynamic(rows, self._packed, False)
        return product


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Of activations and caches where weights have this type."""
    return torch.float32 if dtype is torch.int8 else dtype


def make_linear(layers: Sequence[nn.Linear], dtype: torch.dtype) -> Linear:
    """One product for layers with the same input; their outputs stand side by side.

    Args:
        dtype: of the weights: float32, bfloat16 or int8.
    """
    weights = [layer.weight.detach() for layer in layers]
    weight = torch.cat(weights) if len(weights) > 1 else weights[0]
    bias = None
    if layers[0].bias is not None:
        bias = torch.cat([layer.bias.detach() for layer in layers])
    if dtype is torch.int8:
        return Int8Linear(weight, bias)
    weight, bias = weight.to(dtype), None if bias is None else bias.to(dtype)
    if dtype is torch.bfloat16 and weight.device.type == "cpu" and can_pack():
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
        linear.weight = nn.Parameter(weight, requires_grad=False)
        if bias is not None:
            linear.bias = nn.Parameter(bias, requires_grad=False)
        return PackedLinear(linear)
    return lambda rows: F.linear(rows, weight, bias)
