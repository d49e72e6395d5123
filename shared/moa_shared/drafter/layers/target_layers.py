"""The target's layers that drafters reuse: each is read and packed once, however many drafters of a device run it.

State: the layers that were asked for.
"""

from __future__ import annotations

from collections.abc import Iterable

from moa_kernels import Layer

from moa_shared.drafter.layers.arithmetic import Arithmetic
from moa_shared.models.network.layers import Weights, read_layer


class TargetLayers:
    """Layers of one target.

    Args:
        target: its weights, with at least the layers that are asked for.
    """

    def __init__(self, target: Weights) -> None:
        self._target = target
        self._read: dict[tuple[int, Arithmetic], Layer] = {}

    def read(self, numbers: Iterable[int], arithmetic: Arithmetic) -> list[Layer]:
        """The layers of these numbers.

        Raises:
            KernelError: weights that the kernels do not take.
            ModelSourceError: a layer is missing.
        """
        return [self._layer(number, arithmetic) for number in numbers]

    def _layer(self, number: int, arithmetic: Arithmetic) -> Layer:
        layer = self._read.get((number, arithmetic))
        if layer is None:
            layer = read_layer(self._target, f"model.layers.{number}", arithmetic.linear)
            self._read[number, arithmetic] = layer
        return layer
