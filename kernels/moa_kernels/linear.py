"""Linear layers packed for the kernels.

State: weights only, in the kernels' layout. Invariant: a row's result has the same bits whatever rows stand beside it.
"""

import ctypes as ct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from moa_kernels.bindings import GROUP, LANES, CLinear, CPart, KernelError, address
from moa_kernels.blocks import QuantisedMatrix, Rows, capped, quantised
from moa_kernels.blocks import norm as numpy_norm
from moa_kernels.library import library, threads
from moa_kernels.tiles import PLAIN, Tiles, packed


class Linear:
    """One product for matrices with the same input; their outputs stand side by side.

    Each of `weights`, [outputs, inputs], is quantised, and taken as it is, float, which becomes Q8_0, or packed, with
    numbers that the caller has checked. `plain`: all stays in float32 (slow). `reference`: compute in numpy, in
    float32, which takes any number of inputs.
    """

    def __init__(
        self,
        weights: Sequence[QuantisedMatrix | Tiles | npt.NDArray[np.floating]],
        bias: Rows | None = None,
        *,
        plain: bool = False,
        reference: bool = False,
    ) -> None:
        if not weights or any(len(part.shape) != 2 or 0 in part.shape for part in weights):
            raise KernelError(f"Its parts have the shapes {[part.shape for part in weights]}, which is no matrix.")
        self.outputs = sum(part.shape[0] for part in weights)
        self.inputs = int(weights[0].shape[1])
        self.compiled = not reference and library() is not None
        self.plain = plain
        if self.inputs % GROUP and not reference:
            raise KernelError(f"It has {self.inputs} inputs, which is no multiple of {GROUP}.")
        if any(part.shape[1] != self.inputs for part in weights):
            raise KernelError(f"Its parts have {', '.join(str(part.shape[1]) for part in weights)} inputs.")
        if bias is not None and bias.shape != (self.outputs,):
            raise KernelError(f"Its bias has the shape {bias.shape}, expected ({self.outputs},).")
        self.has_bias = bias is not None
        self._bias = None if bias is None else np.ascontiguousarray(bias, np.float32)
        if not self.compiled:
            self._weight = np.concatenate([_wide(_checked(part, plain=plain or reference)) for part in weights])
            return
        self._parts = [part if isinstance(part, Tiles) else packed(_checked(part, plain=plain)) for part in weights]
        if len({part.kind == PLAIN for part in self._parts}) > 1:
            raise KernelError("Some of its parts are packed in float32, and some are not.")
        self.plain = self._parts[0].kind == PLAIN
        self._c_parts = (CPart * len(self._parts))(
            *(CPart(part.number, part.outputs, address(part.memory)) for part in self._parts)
        )
        self.c = CLinear(self.outputs, self.inputs, len(self._parts), self._c_parts, address(self._bias))

    def __call__(self, rows: Rows) -> Rows:
        """[rows, inputs] float32 to [rows, outputs] float32."""
        if rows.ndim != 2 or rows.shape[1] != self.inputs:
            raise KernelError(f"A product of {self.inputs} inputs cannot take rows of the shape {rows.shape}.")
        loaded = library()
        if loaded is None or not self.compiled:
            product: Rows = rows @ self._weight.T
            return product if self._bias is None else product + self._bias
        rows = np.ascontiguousarray(rows, np.float32)
        out = np.empty((len(rows), self.outputs), np.float32)
        if loaded.moa_linear(ct.byref(self.c), len(rows), address(rows), address(out), threads()):
            raise MemoryError("There is no memory for a product.")
        return out


def norm(rows: Rows, weight: Rows, eps: float) -> Rows:
    loaded = library()
    if loaded is None:
        return numpy_norm(rows, weight, eps)
    if rows.shape[1] != len(weight) or len(weight) % LANES:
        raise KernelError(f"A norm of {len(weight)} numbers cannot take rows of the shape {rows.shape}.")
    rows, weight = vector(rows), vector(weight)
    out = np.empty_like(rows)
    loaded.moa_norm(len(rows), rows.shape[1], eps, address(weight), address(rows), address(out))
    return out


def cap(rows: Rows, most: float) -> Rows:
    """most tanh(x / most) of each number; a new array."""
    loaded = library()
    if loaded is None:
        return capped(rows, most)
    out = np.array(rows, np.float32, order="C", copy=True)
    loaded.moa_cap(out.size, most, address(out))
    return out


def vector(weight: npt.NDArray[np.floating]) -> Rows:
    """An array as the kernels read it: contiguous float32; the same object where it is so already."""
    return np.ascontiguousarray(weight, np.float32)


def _checked(part: QuantisedMatrix | Tiles | npt.NDArray[np.floating], *, plain: bool) -> QuantisedMatrix | Rows:
    if isinstance(part, Tiles):
        raise KernelError("Packed weights are for the kernels alone.")
    if plain:
        return _wide(part)
    matrix = part if isinstance(part, QuantisedMatrix) else quantised(part)
    matrix.check()
    return matrix


def _wide(part: QuantisedMatrix | npt.NDArray[np.floating]) -> Rows:
    return part.dequantised() if isinstance(part, QuantisedMatrix) else part.astype(np.float32)
