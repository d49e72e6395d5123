from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_shared.errors import ProtocolError
from moa_shared.protocol.memory_codec import GROUP, Codec, decode, encode, row_bytes

if TYPE_CHECKING:
    import torch

STEP = {Codec.BF16: 1 / 128, Codec.INT8: 1 / 127, Codec.INT4: 1 / 7}


@pytest.mark.parametrize("codec", Codec)
@given(
    count=st.integers(0, 4), width=st.integers(1, 100), seed=st.integers(0, 1000), scale=st.sampled_from([1e-3, 1, 50])
)
def test_rows_come_back_within_a_step(codec: Codec, count: int, width: int, seed: int, scale: float) -> None:
    rows = np.random.default_rng(seed).standard_normal((count, width), np.float32) * np.float32(scale)
    payload = encode(rows, codec)
    assert len(payload) == count * row_bytes(codec, width)
    back = decode(payload, codec, count, width)
    assert back.shape == (count, width)
    if count:
        allowed = 0.8 * STEP[codec] * np.abs(rows).max(axis=1, keepdims=True) + 1e-7
        assert (np.abs(back - rows) <= allowed).all()


def in_torch(rows: np.ndarray, codec: Codec) -> bytes:
    """The codec as it was first written, over torch's own bfloat16."""
    import torch

    values = torch.from_numpy(rows)
    if codec is Codec.BF16:
        return bytes(values.to(torch.bfloat16).view(torch.uint8).numpy().tobytes())
    count, width = values.shape
    levels, group = (127, width) if codec is Codec.INT8 else (7, GROUP)
    padded = torch.nn.functional.pad(values, (0, -width % group)).reshape(count, -1, group)
    scales = (padded.abs().amax(dim=-1, keepdim=True) / levels).to(torch.bfloat16)
    safe = torch.where(scales > 0, scales.float(), torch.ones(()))
    integers = (padded / safe).round().clamp(-levels, levels).to(torch.int8).reshape(count, -1)
    body = integers.view(torch.uint8)
    if codec is Codec.INT4:
        biased = (integers + 8).to(torch.uint8)
        body = biased[:, 0::2] | (biased[:, 1::2] << 4)
    head = scales.reshape(count, -1).view(torch.uint8)
    return bytes(torch.cat([head, body], dim=1).numpy().tobytes())


def decode_in_torch(payload: bytes, codec: Codec, count: int, width: int) -> torch.Tensor:
    import torch

    raw = torch.frombuffer(bytearray(payload), dtype=torch.uint8).reshape(count, -1)
    if codec is Codec.BF16:
        return raw.view(torch.bfloat16).float()
    group = width if codec is Codec.INT8 else GROUP
    groups = -(-width // group)
    scales = raw[:, : 2 * groups].reshape(-1).clone().view(torch.bfloat16).float().reshape(count, groups)
    body = raw[:, 2 * groups :]
    if codec is Codec.INT8:
        integers = body.view(torch.int8).float()
    else:
        integers = torch.stack([body & 15, body >> 4], dim=-1).reshape(count, -1).float() - 8.0
    return (integers.reshape(count, groups, -1) * scales[..., None]).reshape(count, -1)[:, :width]


def awkward_rows(width: int, seed: int) -> np.ndarray:
    """Of every size, with ties of rounding to bf16 and to integers, zeros, and numbers that are huge or tiny."""
    random = np.random.default_rng(seed)
    rows = random.standard_normal((12, width), np.float32)
    rows *= np.float32(10.0) ** random.integers(-44, 38, (12, 1)).astype(np.float32)
    rows[0] = (rows[0].view(np.uint32) & 0xFFFF_0000 | 0x8000).view(np.float32)  # half-way between two of bf16
    rows[1] = random.integers(-14, 15, width) / 2  # half-way between two integers, where the scale is 1
    rows[1, 0] = 7
    rows[2] = random.integers(-254, 255, width) / 2
    rows[2, 0] = -127
    rows[3] = 0
    rows[4] = -0.0
    rows[5] = random.choice(np.array([0, 1e-45, 3e-39, 3.38e38, -3.4e38], np.float32), width)
    rows[6] = random.choice(np.array([0, 1e-45, -2e-45, 1e-40], np.float32), width)
    return rows


@pytest.mark.torch
@pytest.mark.parametrize("codec", Codec)
@given(width=st.sampled_from([1, 31, 32, 64, 100, 384]), seed=st.integers(0, 1 << 32))
def test_bytes_and_rows_are_those_of_torch(codec: Codec, width: int, seed: int) -> None:
    rows = awkward_rows(width, seed)
    payload = encode(rows, codec)
    assert payload == in_torch(rows, codec)
    back = decode(payload, codec, len(rows), width)
    np.testing.assert_array_equal(
        back.view(np.uint32), decode_in_torch(payload, codec, len(rows), width).numpy().view(np.uint32)
    )


def test_rows_need_not_lie_together() -> None:
    rows = np.random.default_rng(0).standard_normal((6, 128), np.float32)
    for codec in Codec:
        assert encode(rows[::2, ::-2], codec) == encode(rows[::2, ::-2].copy(), codec)


@pytest.mark.parametrize("codec", Codec)
def test_what_is_no_number_stays_none_and_harms_no_other_row(codec: Codec) -> None:
    rows = np.ones((3, 32), np.float32)
    rows[1, 5] = np.nan
    rows[2, 5] = np.inf
    back = decode(encode(rows, codec), codec, 3, 32)
    np.testing.assert_allclose(back[0], 1, rtol=0.01)
    assert not np.isfinite(back[1:, 5]).any()


@pytest.mark.parametrize("codec", Codec)
def test_a_payload_of_the_wrong_length_is_refused(codec: Codec) -> None:
    payload = encode(np.ones((2, 64), np.float32), codec)
    for wrong in (payload[:-1], payload + b"x"):
        words = f"{len(payload)} bytes for 2 memory rows of 64 numbers .* got {len(wrong)}"
        with pytest.raises(ProtocolError, match=words):
            decode(wrong, codec, 2, 64)
