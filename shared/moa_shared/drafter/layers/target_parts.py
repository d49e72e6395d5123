"""The parts of the target that drafters run: each is read and packed once, however many drafters of a device run it.

State: the parts that were asked for.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from moa_kernels import KernelError, Layer, Linear

from moa_shared.drafter.layers.arithmetic import Arithmetic
from moa_shared.drafter.layers.weights import read_head
from moa_shared.models.families import EARLIEST
from moa_shared.models.network.layers import Weights, read_layer
from moa_shared.models.network.plan import Plan, plan_of


def plan_of_target(target: Weights, context: int = 0) -> Plan | None:
    """What the target's layers compute; None: they are of Llama's form, with the sizes that the drafter names."""
    config = getattr(target, "config", None)
    if config is None or (config.get("model_type") in EARLIEST and not config.get("use_sliding_window")):
        return None
    return plan_of(config, context)


class TargetParts:
    """Layers and head of one target.

    Args:
        target: its weights, with at least what is asked for.
        packed: the same, some of them packed and mapped, for arithmetic that takes them so; None: none are.
        context: the most positions that the server's texts will have, by which it chose longrope's factors; 0: as many
            as the model was made for.
    """

    def __init__(self, target: Weights, packed: Weights | None = None, context: int = 0) -> None:
        self._target = target
        self._packed = packed or target
        self.plan = plan_of_target(target, context)
        self._layers: dict[tuple[int, Arithmetic], Layer] = {}
        self._heads: dict[tuple[bytes, Arithmetic], Linear] = {}

    def layers(self, numbers: Iterable[int], arithmetic: Arithmetic) -> list[Layer]:
        return [self._layer(number, arithmetic) for number in numbers]

    def head(self, ids: npt.NDArray[np.int64] | None, arithmetic: Arithmetic) -> Linear:
        """The output weights of these tokens; None: of all. Raises as `layers`."""
        key = (b"" if ids is None else ids.tobytes(), arithmetic)
        if key not in self._heads:
            self._heads[key] = read_head(self._weights(arithmetic), ids, arithmetic)
        return self._heads[key]

    def _layer(self, number: int, arithmetic: Arithmetic) -> Layer:
        layer = self._layers.get((number, arithmetic))
        if layer is None:
            prefix, plan = f"model.layers.{number}", self.plan
            weights = self._weights(arithmetic)
            if plan is None:
                layer = read_layer(weights, prefix, arithmetic.linear)
            else:
                if reason := plan.why_not_alone(number):
                    raise KernelError(f"A device does not run the last layers of this target: {reason}.")
                own = plan.layers[number]
                layer = read_layer(weights, prefix, arithmetic.linear, family=plan.family, plan=own)
            self._layers[number, arithmetic] = layer
        return layer

    def _weights(self, arithmetic: Arithmetic) -> Weights:
        return self._packed if arithmetic.takes_tiles else self._target
