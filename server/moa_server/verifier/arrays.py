"""Tensors of the target as arrays, and functions over tensors as functions over arrays: where torch ends."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

Rows = npt.NDArray[np.float32]


def as_array(tensor: torch.Tensor) -> Rows:
    """A tensor of any float dtype on any device as a float32 array, exactly; may share its memory."""
    wide = tensor.detach().float()
    if wide.is_cuda:  # into pinned memory, which torch uses again: several times as fast, and logits are large
        wide = torch.empty(wide.shape, dtype=wide.dtype, pin_memory=True).copy_(wide)
    array: Rows = wide.numpy()
    return array


def over_arrays(
    function: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype, device: torch.device
) -> Callable[[Rows], Rows]:
    """Wraps a function over tensors of one dtype and device as one over float32 arrays, without gradients."""

    def run(rows: Rows) -> Rows:
        with torch.inference_mode():
            return as_array(function(torch.from_numpy(rows).to(device, dtype)))

    return run
