from typing import Any

import numpy as np
import pytest
from moa_kernels import FORMATS, Q4_1, Q8_0, KernelError, Linear, QuantisedMatrix, norm, quantised

from tests.unit.moa_kernels.variants_here import random_matrix, rounded

SIZES = [(1, 32), (15, 64), (16, 96), (17, 32), (97, 320), (130, 576)]
ROWS = [1, 2, 3, 4, 5, 7, 8, 11, 15, 16, 17, 31, 32, 33, 62, 70]


@pytest.mark.usefixtures("variant", "threads")
@pytest.mark.parametrize("kind", [*FORMATS, "plain", "float", "mixed"])
@pytest.mark.parametrize(("outputs", "inputs"), SIZES)
def test_a_product_is_that_of_the_rounded_activations(kind: str, outputs: int, inputs: int) -> None:
    if kind in FORMATS:
        inputs = -(-inputs // FORMATS[kind].values) * FORMATS[kind].values
    random = np.random.default_rng(outputs)
    bias = random.normal(size=outputs).astype(np.float32)
    wide = random.normal(size=(outputs, inputs)).astype(np.float32) / np.float32(inputs**0.5)
    if kind == "plain":
        linear, expected = Linear([wide], bias, plain=True), wide
    elif kind == "float":
        linear, expected = Linear([wide], bias), quantised(wide).dequantised()
    elif kind == "mixed":
        first = random_matrix(random, Q4_1, outputs, inputs)
        expected = np.concatenate([first.dequantised(), quantised(wide).dequantised()])
        bias = random.normal(size=2 * outputs).astype(np.float32)
        linear = Linear([first, wide], bias)
    else:
        matrix = random_matrix(random, kind, outputs, inputs)
        linear, expected = Linear([matrix], bias), matrix.dequantised()
    weights = expected.astype(np.float64)
    alone: dict[int, bytes] = {}
    x = (random.normal(size=(70, inputs)) * 10.0 ** random.integers(-3, 3, (70, 1))).astype(np.float32)
    seen = x.astype(np.float64) if kind == "plain" else rounded(x)
    for rows in ROWS:
        got = linear(x[:rows])
        sizes = np.abs(seen[:rows]) @ np.abs(weights.T) + np.abs(bias)
        assert bool((np.abs(got - (seen[:rows] @ weights.T + bias)) <= 2e-6 * sizes).all())
        for row in range(rows):
            assert alone.setdefault(row, got[row].tobytes()) == got[row].tobytes()


@pytest.mark.usefixtures("variant")
def test_no_rows_rows_of_zeros_and_rows_that_are_not_contiguous_or_of_another_type() -> None:
    linear = Linear([random_matrix(np.random.default_rng(0), Q8_0, 20, 64)])
    assert linear(np.empty((0, 64), np.float32)).shape == (0, 20)
    assert not linear(np.zeros((2, 64), np.float32)).any()
    x = np.random.default_rng(1).normal(size=(6, 128)).astype(np.float32)
    expected = linear(np.ascontiguousarray(x[::2, ::2]))
    np.testing.assert_array_equal(linear(x[::2, ::2]), expected)
    np.testing.assert_array_equal(linear(x[::2, ::2].astype(np.float64)), expected)


@pytest.mark.usefixtures("variant")
def test_the_largest_codes_and_inputs_are_multiplied_exactly() -> None:
    """-128, which ggml never writes, among them."""
    for kind in FORMATS:
        for byte in (0x00, 0x7F, 0x80, 0xFF):
            matrix = random_matrix(np.random.default_rng(0), kind, 20, 256)
            scales = matrix.raw.copy()
            matrix.raw[...] = byte
            for at in FORMATS[kind].halves:
                matrix.raw[..., at : at + 2] = scales[..., at : at + 2]
            if FORMATS[kind].exponent is not None:
                matrix.raw[..., 0] = 120
            x = np.stack([np.full(256, 127, np.float32), np.full(256, -127, np.float32)])
            weights = matrix.dequantised().astype(np.float64)
            sizes = np.abs(x) @ np.abs(weights.T) + 1e-30
            assert bool((np.abs(Linear([matrix])(x) - x @ weights.T) <= 1e-5 * sizes).all()), (kind, byte)


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize("shape", [(0, 32), (16, 0), (0, 0)])
@pytest.mark.parametrize("reference", [False, True])
def test_a_matrix_without_numbers_is_refused(shape: tuple[int, int], reference: bool) -> None:
    whole, empty = np.ones((16, 32), np.float32), np.zeros(shape, np.float32)
    blocks = QuantisedMatrix(Q8_0, np.zeros((shape[0], shape[1] // 32, 34), np.uint8))
    for parts in ([empty], [blocks], [whole, empty], []):
        with pytest.raises(KernelError, match="which is no matrix"):
            Linear(parts, reference=reference)


def test_what_does_not_fit_is_refused() -> None:
    random = np.random.default_rng(0)
    matrix = random_matrix(random, Q8_0, 20, 64)
    for shape in ((2, 32), (64,)):
        with pytest.raises(KernelError, match="A product of 64 inputs cannot take rows of the shape"):
            Linear([matrix])(np.zeros(shape, np.float32))
    other: list[Any] = [matrix, random_matrix(random, Q8_0, 20, 32)]
    for arguments, words in (
        (([matrix], np.zeros(19, np.float32)), r"Its bias has the shape \(19,\), expected \(20,\)"),
        ((other,), "Its parts have 64, 32 inputs"),
        (([np.zeros((4, 40), np.float32)],), "It has 40 inputs, which is no multiple of 32"),
    ):
        with pytest.raises(KernelError, match=words):
            Linear(*arguments)


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize("width", [16, 64, 576])
@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
def test_a_norm_is_the_root_mean_square(width: int, size: float) -> None:
    random = np.random.default_rng(width)
    x = (random.normal(size=(5, width)) * size).astype(np.float32)
    weight = random.normal(1, 0.1, width).astype(np.float32)
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(norm(x, weight, 1e-5), expected, rtol=3e-6)


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize(("width", "numbers"), [(24, 24), (32, 16)])
def test_a_norm_of_other_widths_is_refused(width: int, numbers: int) -> None:
    with pytest.raises(KernelError, match=rf"A norm of {numbers} numbers cannot take rows of .* \(2, {width}\)"):
        norm(np.zeros((2, width), np.float32), np.zeros(numbers, np.float32), 1e-5)
