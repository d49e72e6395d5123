"""What a drafter computes with: the kernels over 8-bit or float32 weights, or numpy where the kernels do not take its
sizes. Decided once per network, so that all of its parts agree. No state.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from moa_kernels import (
    F16,
    F32,
    GROUP,
    Layer,
    Linear,
    QuantisedMatrix,
    Rotary,
    Stack,
    StackShape,
    Tiles,
    in_four_bits,
    norm,
)
from moa_kernels.arithmetic import norm as numpy_norm

from moa_shared.errors import ConfigError

Rows = npt.NDArray[np.float32]

INT8, INT4, FLOAT32 = "int8", "int4", "float32"
WEIGHTS = (INT8, INT4, FLOAT32)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How one network is computed."""

    # weights and activations in float32; else weights as the target's file has them in blocks, others as Q8_0, and
    # activations in int8 with a scale a group
    plain: bool
    in_numpy: bool  # without the kernels, in float32 and slowly
    # all matrices as Q4_1: a drafter's step takes a fifth less time, and it is right a little less often
    four_bits: bool = False

    @classmethod
    def of(cls, weights: str, sizes: Iterable[int]) -> Arithmetic:
        """The arithmetic for a network whose rows, MLPs and heads have these sizes."""
        if weights not in WEIGHTS:
            raise ConfigError(f"There are no drafter weights {weights!r}.", hint=f"Give {' or '.join(WEIGHTS)}.")
        return cls(weights == FLOAT32, any(size % GROUP for size in sizes), weights == INT4)

    @property
    def takes_tiles(self) -> bool:
        """Whether matrices that are packed as their file has them are computed with as they are."""
        return not (self.plain or self.in_numpy or self.four_bits)

    @property
    def kv(self) -> str:
        """How keys and values are kept. float16 is far more exact than 8-bit products, and half of float32's memory."""
        return F32 if self.plain else F16

    def linear(self, weights: Sequence[QuantisedMatrix | Tiles | Rows], bias: Rows | None = None) -> Linear:
        """One product for matrices with the same input; those that are packed already stay as they are."""
        if self.four_bits and not self.in_numpy:
            weights = [matrix if isinstance(matrix, Tiles) else in_four_bits(matrix) for matrix in weights]
        return Linear(weights, bias, plain=self.plain, reference=self.in_numpy)

    def stack(self, shape: StackShape, layers: Sequence[Layer], rotary: Rotary | Sequence[Rotary]) -> Stack:
        return Stack(shape, layers, rotary, reference=self.in_numpy)

    def norm(self, rows: Rows, weight: Rows, eps: float) -> Rows:
        return numpy_norm(rows, weight, eps) if self.in_numpy else norm(rows, weight, eps)
