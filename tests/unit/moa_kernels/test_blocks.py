import re

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_kernels import FORMATS, Q4_1, Q8_0, KernelError, QuantisedMatrix, in_four_bits, quantised
from moa_kernels.blocks import joined
from moa_kernels.library import VARIANT_VARIABLE
from moa_kernels.variants import NUMPY

from tests.unit.moa_kernels.variants_here import HERE, random_matrix

KINDS = {Q4_1: gguf.GGMLQuantizationType.Q4_1, Q8_0: gguf.GGMLQuantizationType.Q8_0}


def weights(outputs: int, inputs: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(outputs, inputs)).astype(np.float32)


def as_gguf(kind: str, outputs: int, inputs: int, seed: int = 0) -> QuantisedMatrix:
    """Blocks as GGUF's own writer makes them."""
    raw = gguf.quants.quantize(weights(outputs, inputs, seed), KINDS[kind])
    return QuantisedMatrix(kind, raw.reshape(outputs, inputs // 32, FORMATS[kind].size))


@pytest.mark.parametrize("variant", [*HERE, NUMPY])
@pytest.mark.parametrize("kind", FORMATS)
def test_every_number_is_that_of_the_gguf_package(kind: str, variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIANT_VARIABLE, variant)
    matrix = random_matrix(np.random.default_rng(3), kind, 9, 3 * FORMATS[kind].values)
    matrix.check()
    quantisation = gguf.GGMLQuantizationType[kind.upper()]
    assert gguf.GGML_QUANT_SIZES[quantisation] == (FORMATS[kind].values, FORMATS[kind].size)
    expected = gguf.quants.dequantize(matrix.raw.reshape(9, -1), quantisation)
    np.testing.assert_array_equal(matrix.dequantised().view(np.uint32), expected.view(np.uint32))


@given(st.integers(1, 6), st.integers(1, 3), st.integers(0, 99), st.sampled_from([1e-4, 1e-3, 1.0, 300.0]))
def test_codes_are_within_half_a_step(outputs: int, groups: int, seed: int, size: float) -> None:
    values = weights(outputs, 32 * groups, seed) * np.float32(size)
    parts = values.reshape(outputs, groups, 32)
    largest = np.abs(parts).max(-1).repeat(32, axis=-1)
    steps = ((parts.max(-1) - parts.min(-1)) / 15).repeat(32, axis=-1)
    # Half a step, and what scale and minimum lost in float16 (a part in 2,048, or 2^-25 where they are that small).
    for matrix, kind, bound in (
        (quantised(values), Q8_0, (largest / 127 * 0.5 + largest / 2048 + 127 * 2.0**-25) * 1.001),
        (in_four_bits(values), Q4_1, 0.5 * steps + largest / 512 + 16 * 2.0**-25),
    ):
        matrix.check()
        assert (matrix.kind, matrix.shape) == (kind, values.shape)
        assert bool((np.abs(matrix.dequantised() - values) <= bound).all())


def test_four_bits_of_eight_and_of_four() -> None:
    four = as_gguf(Q4_1, 5, 64)
    assert in_four_bits(four) is four
    eight = as_gguf(Q8_0, 5, 64)
    np.testing.assert_array_equal(in_four_bits(eight).raw, in_four_bits(eight.dequantised()).raw)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_chosen_and_joined(kind: str) -> None:
    first, second = as_gguf(kind, 5, 64), as_gguf(kind, 3, 64, seed=1)
    np.testing.assert_array_equal(first.rows([4, 0, 4]).dequantised(), first.dequantised()[[4, 0, 4]])
    both = joined([first, second])
    np.testing.assert_array_equal(both.dequantised(), np.concatenate([first.dequantised(), second.dequantised()]))
    assert joined([first]) is first


@pytest.mark.parametrize(("kind", "raw", "words"), [
    ("iq3_s", np.zeros((2, 1, 110), np.uint8), "Weights of the kind 'iq3_s' are not computed by the kernels."),
    (Q8_0, np.zeros((2, 1, 20), np.uint8), "has the shape (2, 1, 20), expected blocks of 34 bytes."),
    (Q4_1, np.zeros((2, 20), np.uint8), "has the shape (2, 20), expected blocks of 20 bytes."),
    (Q4_1, np.zeros((2, 1, 20), np.int8), "has the shape (2, 1, 20), expected blocks of 20 bytes."),
])  # fmt: skip
def test_other_shapes_are_refused(kind: str, raw: np.ndarray, words: str) -> None:
    with pytest.raises(KernelError, match=re.escape(words)):
        QuantisedMatrix(kind, raw)
