"""Quantised matrices as GGUF holds them: blocks of 32 inputs with a scale, and for Q4_1 a minimum.

Rows (outputs) can be chosen and put together without touching their numbers. State: none beyond the arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moa_kernels.errors import KernelError

GROUP = 32
Q4_1, Q8_0 = "q4_1", "q8_0"
BLOCK_BYTES = {Q4_1: 20, Q8_0: 34}
LEVELS = 127  # of Q8_0; -128 is not used, so that a sign can be moved from one factor to the other
_BATCH_ROWS = 4096  # rows at once: bounds what is held in float32

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class QuantisedMatrix:
    """A matrix [outputs, inputs].

    Args:
        kind: "q4_1" (float16 d, float16 m, 16 bytes of nibbles: inputs 0-15 low, 16-31 high; weight = q d + m) or
            "q8_0" (float16 d, 32 int8; weight = q d).
        raw: [outputs, inputs / 32, bytes of a block] uint8.

    Raises:
        KernelError: another kind or shape.
    """

    kind: str
    raw: npt.NDArray[np.uint8]

    def __post_init__(self) -> None:
        if self.kind not in BLOCK_BYTES:
            raise KernelError(f"Weights of the kind {self.kind!r} are not computed by the kernels.")
        if self.raw.ndim != 3 or self.raw.shape[2] != BLOCK_BYTES[self.kind] or self.raw.dtype != np.uint8:
            raise KernelError(
                f"A {self.kind} matrix has the shape {self.raw.shape},"
                f" expected blocks of {BLOCK_BYTES[self.kind]} bytes."
            )

    @property
    def shape(self) -> tuple[int, int]:
        """(outputs, inputs)."""
        return self.raw.shape[0], self.raw.shape[1] * GROUP

    def rows(self, ids: npt.NDArray[np.int64] | Sequence[int]) -> QuantisedMatrix:
        """The matrix of these outputs, in this order."""
        return QuantisedMatrix(self.kind, self.raw[ids])

    def dequantised(self) -> Rows:
        """[outputs, inputs] float32."""
        blocks = self.raw
        scales = blocks[..., :2].copy().view(np.float16).astype(np.float32)
        values = np.empty((*blocks.shape[:-1], GROUP), np.float32)
        if self.kind == Q8_0:
            np.multiply(scales, blocks[..., 2:].view(np.int8), out=values)
        else:
            values[..., :16] = blocks[..., 4:] & 15
            values[..., 16:] = blocks[..., 4:] >> 4
            values *= scales
            values += blocks[..., 2:4].copy().view(np.float16).astype(np.float32)
        return values.reshape(self.shape)

    def check(self) -> None:
        """Raises KernelError for numbers that cannot be computed with: a scale that is not finite, a code of -128."""
        scales = self.raw[..., :2].copy().view(np.float16)
        finite = bool(np.isfinite(scales).all())
        if self.kind == Q4_1:
            finite = finite and bool(np.isfinite(self.raw[..., 2:4].copy().view(np.float16)).all())
        if not finite:
            raise KernelError("It holds scales that are not finite.")
        if self.kind == Q8_0 and bool((self.raw[..., 2:] == 0x80).any()):
            raise KernelError("It holds the code -128, which the kernels do not take.")


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
    raw = np.empty((outputs, inputs // GROUP, BLOCK_BYTES[Q8_0]), np.uint8)
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
    raw = np.empty((outputs, inputs // GROUP, BLOCK_BYTES[Q4_1]), np.uint8)
    for start in range(0, outputs, _BATCH_ROWS):
        part = weights[start : start + _BATCH_ROWS].astype(np.float32).reshape(-1, inputs // GROUP, GROUP)
        if not bool((np.abs(part) < 65504.0 / 2).all()):  # NaN fails too
            raise KernelError("It holds numbers that are not finite, or too large for scales in float16.")
        minima = part.min(axis=-1, keepdims=True).astype(np.float16)
        scales = ((part.max(axis=-1, keepdims=True) - minima) / 15).astype(np.float16)
        divisors = np.where(scales > 0, scales, np.float16(1)).astype(np.float32)
        codes = np.clip(np.rint((part - minima.astype(np.float32)) / divisors), 0, 15).astype(np.uint8)
        rows = raw[start : start + _BATCH_ROWS]
        rows[..., :2], rows[..., 2:4] = scales.view(np.uint8), minima.view(np.uint8)
        rows[..., 4:] = codes[..., :16] | codes[..., 16:] << 4
    return QuantisedMatrix(Q4_1, raw)
