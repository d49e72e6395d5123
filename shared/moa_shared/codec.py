"""The memory codec: rows of activations as bytes, at three prices.

bf16 (2 bytes a number), int8 (1 byte and one scale a row), int4 (half a byte and one scale for 32 numbers). Scales are
bf16, whose range no activation leaves. Pure functions; both ends must agree on the layout, which tests/wire pins down.
Nothing is ever unpickled.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from moa_shared.errors import ProtocolError

if TYPE_CHECKING:
    import torch

GROUP = 32  # numbers that share a scale in int4: no loss of acceptance was measured at 32
SCALE_BYTES = 2


class Codec(IntEnum):
    """How rows are coded; the numbers are those of the wire (moa.v1.Codec)."""

    BF16 = 1
    INT8 = 2
    INT4 = 3


def row_bytes(codec: Codec, width: int) -> int:
    """Bytes of one row of `width` numbers."""
    if codec is Codec.BF16:
        return 2 * width
    if codec is Codec.INT8:
        return width + SCALE_BYTES
    groups = -(-width // GROUP)
    return groups * (GROUP // 2 + SCALE_BYTES)


def encode(rows: torch.Tensor, codec: Codec) -> bytes:
    """Codes rows, [count, width] any float dtype, one row after the other.

    Layout of a row: bf16: the numbers; int8: scale, numbers; int4: all scales, then nibbles (low nibble first, biased
    by 8, a last group padded with zeros). A number is scale * integer, integers -127..127 or -7..7.
    """
    import torch

    if rows.shape[0] == 0:
        return b""
    if codec is Codec.BF16:
        return bytes(rows.to(torch.bfloat16).contiguous().view(torch.uint8).numpy().tobytes())
    levels = 127 if codec is Codec.INT8 else 7
    values = rows.float()
    count, width = values.shape
    group = width if codec is Codec.INT8 else GROUP
    padded = torch.nn.functional.pad(values, (0, -width % group)).reshape(count, -1, group)
    scales = (padded.abs().amax(dim=-1, keepdim=True) / levels).to(torch.bfloat16)
    safe = torch.where(scales > 0, scales.float(), torch.ones(()))
    integers = (padded / safe).round().clamp(-levels, levels).to(torch.int8)
    if codec is Codec.INT8:
        body = integers.reshape(count, -1).view(torch.uint8)
    else:
        biased = (integers.reshape(count, -1) + 8).to(torch.uint8)
        body = biased[:, 0::2] | (biased[:, 1::2] << 4)
    head = scales.reshape(count, -1).contiguous().view(torch.uint8)
    return bytes(torch.cat([head, body], dim=1).numpy().tobytes())


def decode(payload: bytes, codec: Codec, count: int, width: int) -> torch.Tensor:
    """Rows from bytes, [count, width] float32.

    Raises:
        ProtocolError: the payload is not `count` rows of `width` numbers.
    """
    import torch

    expected = count * row_bytes(codec, width)
    if len(payload) != expected:
        raise ProtocolError(
            f"{expected} bytes for {count} memory rows of {width} numbers in {codec.name.lower()}", f"{len(payload)}"
        )
    if count == 0:
        return torch.zeros(0, width)
    raw = torch.frombuffer(bytearray(payload), dtype=torch.uint8).reshape(count, -1)
    if codec is Codec.BF16:
        return raw.view(torch.bfloat16).float()
    group = width if codec is Codec.INT8 else GROUP
    groups = -(-width // group)
    scales = raw[:, : groups * SCALE_BYTES].reshape(-1).clone().view(torch.bfloat16).float().reshape(count, groups)
    body = raw[:, groups * SCALE_BYTES :]
    if codec is Codec.INT8:
        integers = body.view(torch.int8).float()
    else:
        nibbles = torch.stack([body & 15, body >> 4], dim=-1).reshape(count, -1)
        integers = nibbles.float() - 8.0
    return (integers.reshape(count, groups, -1) * scales[..., None]).reshape(count, -1)[:, :width]
