"""Quantised matrices as GGUF holds them: blocks of inputs that share a scale.

Rows (outputs) can be chosen and put together without touching their numbers. State: none beyond the arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moa_kernels.bindings import address
from moa_kernels.errors import KernelError
from moa_kernels.formats import FORMATS, GROUP, MOST_EXPONENT, Q4_1, Q8_0, Format, format_of
from moa_kernels.library import library

LEVELS = 127  # of Q8_0 as it is made here; files may hold -128
_BATCH_ROWS = 4096  # rows at once: bounds what is held in float32

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class QuantisedMatrix:
    """A matrix [outputs, inputs].

    Args:
        kind: the name of its format, as in `formats.FORMATS`.
        raw: [outputs, blocks, bytes of a block] uint8.

    Raises:
        KernelError: another kind or shape.
    """

    kind: str
    raw: npt.NDArray[np.uint8]

    def __post_init__(self) -> None:
        size = format_of(self.kind).size
        if self.raw.ndim != 3 or self.raw.shape[2] != size or self.raw.dtype != np.uint8:
            raise KernelError(f"A {self.kind} matrix has the shape {self.raw.shape}, expected blocks of {size} bytes.")

    @property
    def format(self) -> Format:
        return FORMATS[self.kind]

    @property
    def shape(self) -> tuple[int, int]:
        """(outputs, inputs)."""
        return self.raw.shape[0], self.raw.shape[1] * self.format.values

    def rows(self, ids: npt.NDArray[np.int64] | Sequence[int]) -> QuantisedMatrix:
        """The matrix of these outputs, in this order."""
        return QuantisedMatrix(self.kind, self.raw[ids])

    def dequantised(self) -> Rows:
        """[outputs, inputs] float32, the numbers that the gguf package reads.

        Raises:
            KernelError: a format other than Q4_1 and Q8_0, without compiled kernels and without the gguf package.
        """
        loaded = library()
        if loaded is None:
            return _in_numpy(self)
        raw, values = np.ascontiguousarray(self.raw), np.empty(self.shape, np.float32)
        loaded.moa_dequantise(self.format.number, *self.shape, address(raw), address(values))
        return values

    def check(self) -> None:
        """Raises KernelError for numbers that cannot be computed with: a scale that is not finite."""
        for at in self.format.halves:
            halves = np.ascontiguousarray(self.raw[..., at : at + 2]).view(np.uint16)
            if bool(((halves & 0x7C00) == 0x7C00).any()):
                raise KernelError("It holds scales that are not finite.")
        exponent = self.format.exponent
        if exponent is not None and bool((self.raw[..., exponent] > MOST_EXPONENT).any()):
            raise KernelError("It holds scales that are not finite.")


def _in_numpy(matrix: QuantisedMatrix) -> Rows:
    blocks = matrix.raw
    values = np.empty((*blocks.shape[:-1], matrix.format.values), np.float32)
    if matrix.kind == Q8_0:
        np.multiply(_halves(blocks, 0), blocks[..., 2:].view(np.int8), out=values)
    elif matrix.kind == Q4_1:
        values[..., :16] = blocks[..., 4:] & 15
        values[..., 16:] = blocks[..., 4:] >> 4
        values *= _halves(blocks, 0)
        values += _halves(blocks, 2)
    else:
        try:
            from gguf import GGMLQuantizationType
            from gguf.quants import dequantize
        except ImportError as error:
            raise KernelError(
                f"Weights in {matrix.kind.upper()} need compiled kernels, or the gguf package ({error})."
            ) from error
        if blocks.size:  # what the package needs
            values = dequantize(blocks.reshape(len(blocks), -1), GGMLQuantizationType[matrix.kind.upper()])
    return np.ascontiguousarray(values, np.float32).reshape(matrix.shape)


def _halves(blocks: npt.NDArray[np.uint8], at: int) -> Rows:
    return blocks[..., at : at + 2].copy().view(np.float16).astype(np.float32)


def joined(parts: Sequence[QuantisedMatrix]) -> QuantisedMatrix:
    """The outputs of several matrices of one kind, one after the other."""
    if len(parts) == 1:
        return parts[0]
    return QuantisedMatrix(parts[0].kind, np.concatenate([part.raw for part in parts]))


def quantised(weights: npt.NDArray[np.floating]) -> QuantisedMatrix:
    """[outputs, inputs] of any float type as Q8_0: the largest of 32 numbers is 127 times the scale.

    Raises:
        KernelError: inputs that are no multiple of 32, numbers that are not finite, or too large for float16 scales.
    """
    outputs, inputs = weights.shape
    if inputs % GROUP:
        raise KernelError(f"It has {inputs} inputs, which is no multiple of {GROUP}.")
    raw = np.empty((outputs, inputs // GROUP, FORMATS[Q8_0].size), np.uint8)
    for start in range(0, outputs, _BATCH_ROWS):
        part = weights[start : start + _BATCH_ROWS].astype(np.float32).reshape(-1, inputs // GROUP, GROUP)
        largest = np.abs(part).max(axis=-1, keepdims=True)
        if not bool((largest < 65504.0 * LEVELS).all()):  # NaN fails too
            raise KernelError("It holds numbers that are not finite, or too large for scales in float16.")
        scales = (largest / LEVELS).astype(np.float16)
        # A scale that was rounded down would need codes beyond 127; these are clipped, by at most a two-thousandth.
        divisors = np.where(scales > 0, scales, np.float16(1)).astype(np.float32)
        codes = np.clip(np.rint(part / divisors), -LEVELS, LEVELS).astype(np.int8)
        raw[start : start + _BATCH_ROWS, :, :2] = scales.view(np.uint8).reshape(*scales.shape[:2], 2)
        raw[start : start + _BATCH_ROWS, :, 2:] = codes.view(np.uint8)
    return QuantisedMatrix(Q8_0, raw)


def in_four_bits(weights: QuantisedMatrix | npt.NDArray[np.floating]) -> QuantisedMatrix:
    """A matrix as Q4_1: the smallest and the largest of 32 numbers are the codes 0 and 15.

    Raises:
        KernelError: as `quantised`.
    """
    if isinstance(weights, QuantisedMatrix):
        return weights if weights.kind == Q4_1 else in_four_bits(weights.dequantised())
    outputs, inputs = weights.shape
    if inputs % GROUP:
        raise KernelError(f"It has {inputs} inputs, which is no multiple of {GROUP}.")
    raw = np.empty((outputs, inputs // GROUP, FORMATS[Q4_1].size), np.uint8)
    for start in range(0, outputs, _BATCH_ROWS):
        part = weights[start : start + _BATCH_ROWS].astype(np.float32).reshape(-1, inputs // GROUP, GROUP)
        if not bool((np.abs(part) < 65504.0 / 2).all()):  # NaN fails too
            raise KernelError("It holds numbers that are not finite, or too large for scales in float16.")
        minima = (part.min(axis=-1, keepdims=True) + np.float32(0)).astype(np.float16)  # no -0, which has other bits
        scales = ((part.max(axis=-1, keepdims=True) - minima) / 15).astype(np.float16)
        divisors = np.where(scales > 0, scales, np.float16(1)).astype(np.float32)
        codes = np.clip(np.rint((part - minima.astype(np.float32)) / divisors), 0, 15).astype(np.uint8)
        rows = raw[start : start + _BATCH_ROWS]
        rows[..., :2], rows[..., 2:4] = scales.view(np.uint8), minima.view(np.uint8)
        rows[..., 4:] = codes[..., :16] | codes[..., 16:] << 4
    return QuantisedMatrix(Q4_1, raw)
