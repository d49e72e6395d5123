"""bfloat16 in numpy, which has no such type: the upper half of a float32, held as uint16.

Pure. Rounds to the nearest, ties to even, as torch and processors do.
"""

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.uint16]


def round_to_bfloat16(values: npt.NDArray[np.float32]) -> Bits:
    """The bit patterns of the nearest bfloat16 numbers, same shape; beyond the largest of them: infinity."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    sums = bits >> 16
    sums &= 1
    sums += np.uint32(0x7FFF)
    sums += bits
    rounded = (sums >> 16).astype(np.uint16)
    unordered = np.isnan(values)
    if unordered.any():  # rounding could carry into the sign
        rounded[unordered] = 0x7FC0
    return rounded


def widen_bfloat16(bits: Bits) -> npt.NDArray[np.float32]:
    """The numbers of bit patterns, exactly; same shape."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
