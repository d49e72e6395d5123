import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_shared.protocol.memory_codec import round_to_bfloat16, widen_bfloat16


@pytest.mark.torch
@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=50))
def test_rounding_is_that_of_torch(values: list[float]) -> None:
    import torch

    array = np.array(values, np.float32)
    theirs = torch.from_numpy(array).to(torch.bfloat16)
    np.testing.assert_array_equal(round_to_bfloat16(array).view(np.int16), theirs.view(torch.int16).numpy())


def test_all_ties_go_to_the_even_neighbour() -> None:
    bits = np.arange(0, 0x7F7F, dtype=np.uint32)  # all finite numbers but the largest
    rounded = round_to_bfloat16((bits << 16 | 0x8000).view(np.float32))
    np.testing.assert_array_equal(rounded, bits + (bits & 1))


def test_every_number_comes_back() -> None:
    bits = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    numbers = widen_bfloat16(bits)
    real = ~np.isnan(numbers)
    np.testing.assert_array_equal(round_to_bfloat16(numbers)[real], bits[real])
    assert np.isnan(widen_bfloat16(round_to_bfloat16(numbers[~real]))).all()
