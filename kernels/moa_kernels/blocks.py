"""Quantised matrices as GGUF holds them, blocks of inputs that share a scale, and functions of rows in numpy.

Rows (outputs) can be chosen and put together without touching their numbers. What is computed in numpy and float32 is
for devices without kernels, and what these are tested against. State: none beyond the arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moa_kernels.bindings import FORMATS, GROUP, MOST_EXPONENT, Q4_1, Q8_0, Format, KernelError, address, format_of
from moa_kernels.library import library

LEVELS = 127  # of Q8_0 as it is made here; files may hold -128
_BATCH_BLOCKS = 4096  # at once: half a megabyte in float32, which stays in a core's cache

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class QuantisedMatrix:
    """A matrix [outputs, inputs].

    `kind`: the name of its format, as in `FORMATS`. `raw`: [outputs, blocks, bytes of a block] uint8.
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
        return QuantisedMatrix(self.kind, self.raw[ids])

    def dequantised(self) -> Rows:
        """[outputs, inputs] float32, the numbers that the gguf package reads."""
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
    if len(parts) == 1:
        return parts[0]
    return QuantisedMatrix(parts[0].kind, np.concatenate([part.raw for part in parts]))


def quantised(weights: npt.NDArray[np.floating]) -> QuantisedMatrix:
    """[outputs, inputs] of any float type as Q8_0: the largest of 32 numbers is 127 times the scale."""
    raw = _new_blocks(weights, Q8_0)
    for numbers, blocks in _batches(weights, raw):
        largest = np.abs(numbers).max(axis=0)
        if not bool((largest < 65504.0 * LEVELS).all()):  # NaN fails too
            raise KernelError("It holds numbers that are not finite, or too large for scales in float16.")
        scales = (largest / LEVELS).astype(np.float16)
        # A scale that was rounded down would need codes beyond 127; these are clipped, by at most a two-thousandth.
        codes = _codes(numbers, scales, -LEVELS, LEVELS).astype(np.int8)
        blocks[:, :2], blocks[:, 2:] = _bytes(scales), codes.view(np.uint8).T
    return QuantisedMatrix(Q8_0, raw)


def in_four_bits(weights: QuantisedMatrix | npt.NDArray[np.floating]) -> QuantisedMatrix:
    """A matrix as Q4_1: the smallest and the largest of 32 numbers are the codes 0 and 15."""
    if isinstance(weights, QuantisedMatrix):
        return weights if weights.kind == Q4_1 else in_four_bits(weights.dequantised())
    raw = _new_blocks(weights, Q4_1)
    for numbers, blocks in _batches(weights, raw):
        smallest, largest = numbers.min(axis=0), numbers.max(axis=0)
        if not bool(((smallest > -65504.0 / 2) & (largest < 65504.0 / 2)).all()):  # NaN fails too
            raise KernelError("It holds numbers that are not finite, or too large for scales in float16.")
        minima = (smallest + np.float32(0)).astype(np.float16)  # no -0, which has other bits
        scales = ((largest - minima) / 15).astype(np.float16)
        numbers -= minima.astype(np.float32)
        codes = _codes(numbers, scales, 0, 15).astype(np.uint8)
        blocks[:, :2], blocks[:, 2:4] = _bytes(scales), _bytes(minima)
        blocks[:, 4:] = (codes[:16] | codes[16:] << 4).T
    return QuantisedMatrix(Q4_1, raw)


def _new_blocks(weights: npt.NDArray[np.floating], kind: str) -> npt.NDArray[np.uint8]:
    outputs, inputs = weights.shape
    if inputs % GROUP:
        raise KernelError(f"It has {inputs} inputs, which is no multiple of {GROUP}.")
    return np.empty((outputs, inputs // GROUP, FORMATS[kind].size), np.uint8)


def _batches(
    weights: npt.NDArray[np.floating], raw: npt.NDArray[np.uint8]
) -> Iterator[tuple[Rows, npt.NDArray[np.uint8]]]:
    """The numbers of some blocks at a time as [GROUP, blocks], and where they are to be written as [blocks, bytes].

    numpy takes about three times as long where the 32 numbers of a block are neighbours in memory.
    """
    groups, blocks = weights.reshape(-1, GROUP), raw.reshape(-1, raw.shape[-1])
    for start in range(0, len(groups), _BATCH_BLOCKS):
        numbers = groups[start : start + _BATCH_BLOCKS].T.astype(np.float32, order="C")
        yield numbers, blocks[start : start + _BATCH_BLOCKS]


def _codes(numbers: Rows, scales: npt.NDArray[np.float16], least: int, most: int) -> Rows:
    """The numbers over their scales as whole ones within limits, in their place."""
    numbers /= np.where(scales > 0, scales, np.float16(1)).astype(np.float32)
    return np.clip(np.rint(numbers, out=numbers), least, most, out=numbers)


def _bytes(halves: npt.NDArray[np.float16]) -> npt.NDArray[np.uint8]:
    return halves.view(np.uint8).reshape(-1, 2)


def norm(rows: Rows, weight: Rows, eps: float) -> Rows:
    """Root-mean-square norm over the last axis."""
    squares = (rows * rows).mean(axis=-1, keepdims=True, dtype=np.float32)
    out: Rows = rows / np.sqrt(squares + np.float32(eps)) * weight
    return out


def capped(rows: Rows, most: float) -> Rows:
    """most tanh(x / most) of each number."""
    out: Rows = np.tanh(rows / np.float32(most)) * np.float32(most)
    return out


def rounded(rows: Rows) -> Rows:
    """Rows as the kernels see activations: int8 with a scale for each 32 of them."""
    groups = rows.reshape(len(rows), -1, GROUP)
    largest = np.maximum(np.abs(groups).max(axis=-1, keepdims=True), np.float32(1e-12))
    codes = np.rint(groups * (np.float32(127) / largest))
    out: Rows = (codes * (largest / np.float32(127))).reshape(rows.shape)
    return out
