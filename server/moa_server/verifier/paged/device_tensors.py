"""Arrays of the host on the device: where a graph reads them, always in the same place."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch


class DeviceTensors:
    """Tensors by name.

    Args:
        fixed: a tensor stays where it first was, with its shape: what a recorded graph reads.
    """

    def __init__(self, device: torch.device, *, fixed: bool) -> None:
        self._device, self._fixed = device, fixed
        self._held: dict[str, torch.Tensor] = {}

    def put(self, name: str, array: npt.NDArray[Any]) -> torch.Tensor:
        """The array on the device; until the name is given again."""
        source = torch.from_numpy(np.ascontiguousarray(array))
        if self._fixed and name in self._held:
            return self._held[name].copy_(source)
        self._held[name] = source.to(self._device, copy=self._fixed)
        return self._held[name]
