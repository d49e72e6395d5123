"""The parts of the target that drafters run: each is read and packed once, however many drafters of a device run it.

State: the parts that were asked for.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from moa_kernels import Layer, Linear

from moa_shared.drafter.checkpoint.weights import read_head
from moa_shared.drafter.layers.arithmetic import Arithmetic
from moa_shared.errors import ModelSourceError
from moa_shared.models.network.description import EARLIEST
from moa_shared.models.network.layers import Weights, read_layer


def check_reusable(target: Weights) -> None:
    """Raises ModelSourceError for layers that are not of Llama's form: the device would compute others."""
    family = getattr(target, "family", None)
    if family is not None and family not in EARLIEST:
        raise ModelSourceError(
            f"The last layers of a target of the family {family} cannot be run on a device.",
            hint="Use a drafter that reuses no layers of the target.",
        )


class TargetParts:
    """Layers and head of one target.

    Args:
        target: its weights, with at least what is asked for.
    """

    def __init__(self, target: Weights) -> None:
        self._target = target
        self._layers: dict[tuple[int, Arithmetic], Layer] = {}
        self._heads: dict[tuple[bytes, Arithmetic], Linear] = {}

    def layers(self, numbers: Iterable[int], arithmetic: Arithmetic) -> list[Layer]:
        """The layers of these numbers.

        Raises:
            KernelError: weights that the kernels do not take.
            ModelSourceError: a layer is missing.
        """
        return [self._layer(number, arithmetic) for number in numbers]

    def head(self, ids: npt.NDArray[np.int64] | None, arithmetic: Arithmetic) -> Linear:
        """The output weights of these tokens; None: of all. Raises as `layers`."""
        key = (b"" if ids is None else ids.tobytes(), arithmetic)
        if key not in self._heads:
            self._heads[key] = read_head(self._target, ids, arithmetic)
        return self._heads[key]

    def _layer(self, number: int, arithmetic: Arithmetic) -> Layer:
        layer = self._layers.get((number, arithmetic))
        if layer is None:
            layer = read_layer(self._target, f"model.layers.{number}", arithmetic.linear)
            self._layers[number, arithmetic] = layer
        return layer
