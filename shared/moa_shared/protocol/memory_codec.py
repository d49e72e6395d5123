"""The memory codec: rows of activations as bytes, at three prices; and bfloat16, which numpy lacks.

bf16 (2 bytes a number), int8 (1 byte and one scale a row), int4 (half a byte and one scale for 32 numbers). Scales are
bf16, whose range no activation leaves. That is the upper half of a float32, held as uint16, rounded to the nearest,
ties to even. Pure; tests/wire pins the layout down.
"""

import numpy as np
import numpy.typing as npt

from moa_shared.errors import ProtocolError
from moa_shared.protocol.messages import Codec as Codec  # whoever codes rows names it

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


Rows = npt.NDArray[np.float32]

GROUP = 32  # numbers that share a scale in int4: no loss of acceptance was measured at 32
SCALE_BYTES = 2


def row_bytes(codec: Codec, width: int) -> int:
    """Bytes of one row of `width` numbers."""
    if codec is Codec.BF16:
        return 2 * width
    if codec is Codec.INT8:
        return width + SCALE_BYTES
    groups = -(-width // GROUP)
    return groups * (GROUP // 2 + SCALE_BYTES)


def encode(rows: Rows, codec: Codec) -> bytes:
    """Codes rows, [count, width] float32, one row after the other.

    Layout of a row: bf16: the numbers; int8: scale, numbers; int4: all scales, then nibbles (low nibble first, biased
    by 8, a last group padded with zeros). A number is scale * integer, integers -127..127 or -7..7. All little-endian.
    """
    count, width = rows.shape
    if codec is Codec.BF16 or count == 0:
        return _bytes_of(round_to_bfloat16(rows)).tobytes()
    levels = np.float32(127 if codec is Codec.INT8 else 7)
    groups = _grouped(rows, width if codec is Codec.INT8 else GROUP)
    scales = round_to_bfloat16(_largest(groups) / levels)
    steps = widen_bfloat16(scales)[..., None]
    with np.errstate(all="ignore"):  # a row that holds what is no number says so by its scale
        scaled = groups / np.where(steps > 0, steps, np.float32(1))
        np.rint(scaled, out=scaled)
        integers = np.clip(scaled, -levels, levels, out=scaled).astype(np.int8).reshape(count, -1)
    if codec is Codec.INT8:
        body = integers.view(np.uint8)
    else:
        pairs = (integers + np.int8(8)).view("<u2")
        body = (pairs | (pairs >> 4)).astype(np.uint8)
    return np.concatenate([_bytes_of(scales), body], axis=1).tobytes()


def decode(payload: bytes, codec: Codec, count: int, width: int) -> Rows:
    """Rows from bytes, [count, width] float32."""
    expected = count * row_bytes(codec, width)
    if len(payload) != expected:
        raise ProtocolError(
            f"{expected} bytes for {count} memory rows of {width} numbers in {codec.name.lower()}", f"{len(payload)}"
        )
    raw = np.frombuffer(payload, dtype=np.uint8).reshape(count, row_bytes(codec, width))
    if codec is Codec.BF16:
        return widen_bfloat16(raw.view("<u2"))
    group = width if codec is Codec.INT8 else GROUP
    groups = -(-width // group)
    scales = widen_bfloat16(np.ascontiguousarray(raw[:, : groups * SCALE_BYTES]).view("<u2"))
    body = raw[:, groups * SCALE_BYTES :]
    if codec is Codec.INT8:
        numbers = body.view(np.int8).astype(np.float32)
    else:
        numbers = np.empty((count, 2 * body.shape[1]), dtype=np.float32)
        np.subtract(body & 15, 8, out=numbers[:, 0::2], dtype=np.float32)
        np.subtract(body >> 4, 8, out=numbers[:, 1::2], dtype=np.float32)
    grouped = numbers.reshape(count, groups, group)
    with np.errstate(invalid="ignore"):  # a scale that is infinite
        grouped *= scales[..., None]
    return numbers[:, :width]


def _bytes_of(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(bits, dtype="<u2").view(np.uint8)


def _largest(groups: Rows) -> Rows:
    """The largest magnitude of each group, [count, groups]."""
    count, per_row, size = groups.shape
    if per_row == 1:
        whole: Rows = np.abs(groups).max(axis=-1)
        return whole
    magnitudes = np.abs(groups.reshape(-1, size).T, order="C")  # numpy is slow at many short maxima
    largest: Rows = magnitudes.max(axis=0).reshape(count, per_row)
    return largest


def _grouped(rows: Rows, group: int) -> Rows:
    """[count, groups, group]: the last group padded with zeros."""
    count, width = rows.shape
    padding = -width % group
    padded = np.pad(rows, ((0, 0), (0, padding))) if padding else rows
    return padded.reshape(count, -1, group)
