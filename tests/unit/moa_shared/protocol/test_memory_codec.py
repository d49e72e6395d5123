from __future__ import annotations

from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_shared.errors import ProtocolError
from moa_shared.protocol.memory_codec import Codec, decode, encode, row_bytes

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


def test_bytes_are_pinned() -> None:
    """Ties of rounding among them, rows of zeros, and numbers that are huge or tiny; with a last group that is padded."""
    rows = np.outer(np.array([0.5, 0.0, 1e-40, 3e35], np.float32), np.arange(-254, 254, 5, dtype=np.float32))
    digests = {codec.name: sha256(encode(rows, codec)).hexdigest()[:16] for codec in Codec}
    assert digests == {"BF16": "196d0fa1b20e9f1e", "INT8": "2d19b95c8189a705", "INT4": "60fc7c42caa72f2d"}


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
