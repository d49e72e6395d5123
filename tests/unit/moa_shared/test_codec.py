from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from moa_shared.codec import Codec, decode, encode, row_bytes
from moa_shared.errors import ProtocolError

STEP = {Codec.BF16: 1 / 128, Codec.INT8: 1 / 127, Codec.INT4: 1 / 7}


@pytest.mark.parametrize("codec", Codec)
@given(
    count=st.integers(0, 4), width=st.integers(1, 100), seed=st.integers(0, 1000), scale=st.sampled_from([1e-3, 1, 50])
)
def test_rows_come_back_within_a_step(codec: Codec, count: int, width: int, seed: int, scale: float) -> None:
    rows = torch.randn(count, width, generator=torch.Generator().manual_seed(seed)) * scale
    payload = encode(rows, codec)
    assert len(payload) == count * row_bytes(codec, width)
    back = decode(payload, codec, count, width)
    assert back.shape == (count, width)
    if count:
        allowed = 0.8 * STEP[codec] * rows.abs().amax(dim=1, keepdim=True) + 1e-7
        assert bool(((back - rows).abs() <= allowed).all())


@pytest.mark.parametrize("codec", Codec)
def test_zeros_stay_zeros(codec: Codec) -> None:
    assert not decode(encode(torch.zeros(2, 40), codec), codec, 2, 40).any()


@pytest.mark.parametrize("codec", Codec)
def test_bf16_input_is_the_same_as_float32_input(codec: Codec) -> None:
    rows = torch.randn(3, 64).to(torch.bfloat16)
    assert encode(rows, codec) == encode(rows.float(), codec)


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("change", [-1, 1])
def test_a_payload_of_the_wrong_length_is_refused(codec: Codec, change: int) -> None:
    payload = encode(torch.ones(2, 64), codec)
    wrong = payload[:-1] if change < 0 else payload + b"x"
    with pytest.raises(
        ProtocolError, match=f"{len(payload)} bytes for 2 memory rows of 64 numbers .* got {len(wrong)}"
    ):
        decode(wrong, codec, 2, 64)


def test_int4_is_the_size_that_was_measured() -> None:
    assert row_bytes(Codec.INT4, 384) == 216
