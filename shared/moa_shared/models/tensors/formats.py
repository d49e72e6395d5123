"""Number formats of stored weights, and what they are in float32.

Pure. A tensor is raw bytes, `uint8 [..., bytes of a row]`; a format says how a row becomes numbers. GGUF's quantised
formats come in blocks along a row, 32 numbers each in Q4_1 and Q8_0. The results are those of the `gguf` package and
of transformers to the last bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from moa_kernels import FORMATS as BLOCK_FORMATS
from moa_kernels import KernelError, QuantisedMatrix

from moa_shared.bfloat16 import widen_bfloat16
from moa_shared.errors import ModelSourceError

GROUP = 32  # inputs that share a scale in Q8_0
_EXPONENT_F16, _EXPONENT_BF16 = 0x7C00, 0x7F80  # all ones: infinite, or not a number
_MOST_F16 = 65504.0

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TensorFormat:
    """How a row is stored: `values` numbers take `size` bytes."""

    name: str
    values: int
    size: int

    def row_bytes(self, width: int) -> int:
        """Bytes of a row of `width` numbers.

        Raises:
            ValueError: the width is not a whole number of blocks.
        """
        if width % self.values:
            raise ValueError(f"a row of {width} numbers in {self.name}, which comes in blocks of {self.values}")
        return width // self.values * self.size


F32, F16, BF16 = TensorFormat("f32", 1, 4), TensorFormat("f16", 1, 2), TensorFormat("bf16", 1, 2)
BLOCKS = {name: TensorFormat(name, item.values, item.size) for name, item in BLOCK_FORMATS.items()}  # of the kernels
Q8_0 = BLOCKS["q8_0"]


def to_float32(stored: TensorFormat, raw: Bytes) -> Floats:
    """[..., bytes of a row] -> [..., width] float32, a new array.

    Raises:
        ModelSourceError: a format that needs the `gguf` package, which is not installed.
    """
    if stored == F32:
        return raw.view("<f4").astype(np.float32)
    if stored == F16:
        return raw.view("<f2").astype(np.float32)
    if stored == BF16:
        return widen_bfloat16(raw.view("<u2"))
    if stored.name not in BLOCKS:
        return _by_gguf(stored, raw)
    blocks = _in_blocks(stored, raw)
    try:
        values = QuantisedMatrix(stored.name, blocks.reshape(-1, *blocks.shape[-2:])).dequantised()
    except KernelError as error:
        raise ModelSourceError(str(error), hint="Install the gguf package, or moa with a C compiler.") from error
    return values.reshape(*raw.shape[:-1], values.shape[-1])


def are_finite(stored: TensorFormat, raw: Bytes) -> bool:
    """Whether no number is infinite or not a number. Formats other than ours are not looked at here."""
    if stored == F32:
        return _all_finite(raw.view("<f4"))
    if stored == F16:
        return _lack_exponent(raw.view("<u2"), _EXPONENT_F16)
    if stored == BF16:
        return _lack_exponent(raw.view("<u2"), _EXPONENT_BF16)
    if stored.name in BLOCKS:
        blocks = _in_blocks(stored, raw)
        try:
            QuantisedMatrix(stored.name, blocks.reshape(-1, *blocks.shape[-2:])).check()
        except KernelError:
            return False
    return True


def quantise_q8_0(weights: Floats) -> Bytes:
    """[outputs, inputs] float32 -> uint8 [outputs, inputs / 32, 34], with the bits that ggml gives.

    Raises:
        ValueError: the inputs are not groups of 32, or a group is too large for a scale in float16.
    """
    outputs, inputs = weights.shape
    if inputs % GROUP:
        raise ValueError(f"{inputs} inputs are not groups of {GROUP}")
    groups = weights.reshape(outputs, -1, GROUP)
    scales = np.abs(groups).max(axis=-1, keepdims=True) / np.float32(127)
    if scales.size and not float(scales.max()) <= _MOST_F16:  # NaN too
        raise ValueError("a scale is out of float16's range")
    with np.errstate(divide="ignore"):
        inverse = np.where(scales == 0, np.float32(0), np.float32(1) / scales)
    exact = groups * inverse
    size = np.abs(exact)  # rounded half away from zero
    whole = np.floor(size)
    whole += np.floor(2 * (size - whole))
    raw = np.empty((outputs, inputs // GROUP, Q8_0.size), np.uint8)
    raw[..., :2] = scales.astype("<f2").view(np.uint8)
    raw[..., 2:] = np.copysign(whole, exact).astype(np.int8).view(np.uint8)
    return raw


def _in_blocks(stored: TensorFormat, raw: Bytes) -> Bytes:
    return raw.reshape(*raw.shape[:-1], raw.shape[-1] // stored.size, stored.size)


def _all_finite(values: npt.NDArray[np.floating[Any]]) -> bool:
    with np.errstate(all="ignore"):
        total = values.sum(dtype=np.float32)  # a sum is finite only if all are; otherwise it may just be large
    return bool(np.isfinite(total)) or bool(np.isfinite(values).all())


def _lack_exponent(bits: npt.NDArray[np.uint16], exponent: int) -> bool:
    return not bool(((bits & exponent) == exponent).any())


def _by_gguf(stored: TensorFormat, raw: Bytes) -> Floats:
    try:
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize
    except ImportError as error:
        raise ModelSourceError(
            f"Weights in {stored.name.upper()} cannot be read here ({error}).",
            hint="Install the gguf package, or use a file in another format, Q4_K_M for one.",
        ) from error
    if not raw.size:  # which the package cannot do
        return np.empty((*raw.shape[:-1], raw.shape[-1] // stored.size * stored.values), np.float32)
    values: Floats = dequantize(raw, GGMLQuantizationType[stored.name.upper()])
    return np.ascontiguousarray(values, np.float32)
