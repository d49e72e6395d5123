from __future__ import annotations

import gguf
import numpy as np
import pytest
from inline_snapshot import snapshot
from moa_kernels import QuantisedMatrix
from moa_shared.errors import ModelSourceError
from moa_shared.models.tensors import (
    BF16,
    BLOCKS,
    F16,
    F32,
    Q8_0,
    Bytes,
    Floats,
    TensorFormat,
    are_finite,
    quantise_q8_0,
    to_float32,
)

from tests.support.messages import raises

Q4_1 = BLOCKS["q4_1"]
FORMATS = {stored.name: stored for stored in (F32, F16, BF16, Q4_1, Q8_0)}  # that the gguf package also writes


def some(*shape: int, seed: int = 0) -> Floats:
    """Numbers of many magnitudes."""
    random = np.random.default_rng(seed)
    return (random.standard_normal(shape) * 10.0 ** random.integers(-6, 4, shape)).astype(np.float32)


def stored_in(stored: TensorFormat, values: Floats) -> Bytes:
    data: Bytes = gguf.quants.quantize(values, gguf.GGMLQuantizationType[stored.name.upper()]).view(np.uint8)
    return data


@pytest.mark.parametrize("stored", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("shape", [(64,), (5, 32), (3, 96)])
def test_numbers_are_those_of_the_gguf_package(stored: TensorFormat, shape: tuple[int, ...]) -> None:
    raw = stored_in(stored, some(*shape))
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[stored.name.upper()])
    values = to_float32(stored, raw)
    assert values.dtype == np.float32
    assert values.flags.writeable
    assert np.array_equal(values.view(np.uint32), np.ascontiguousarray(expected).view(np.uint32))
    assert values.shape == shape
    assert raw.shape[-1] == stored.row_bytes(shape[-1])


@pytest.mark.parametrize("kind", ["q4_0", "q5_1", "q6_k", "iq3_s", "tq2_0"])
def test_rarer_formats_are_read_as_the_gguf_package_reads_them(kind: str) -> None:
    quantisation = gguf.GGMLQuantizationType[kind.upper()]
    values, size = gguf.GGML_QUANT_SIZES[quantisation]
    raw = np.random.default_rng(1).integers(0, 60, (2, 3 * size), np.uint8)
    expected = gguf.quants.dequantize(raw, quantisation)
    assert np.array_equal(to_float32(TensorFormat(kind, values, size), raw), expected)


def test_rarer_formats_without_the_gguf_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    with raises(
        ModelSourceError,
        snapshot(
            "Weights in IQ3_S cannot be read here (import of gguf halted; None in sys.modules). Install the gguf package, or use a file in another format, Q4_K_M for one."
        ),
    ):
        to_float32(TensorFormat("iq3_s", 256, 110), np.zeros((1, 110), np.uint8))


def test_a_matrix_in_blocks() -> None:
    weights = some(4, 64)
    matrix = QuantisedMatrix("q4_1", stored_in(Q4_1, weights).reshape(4, 2, 20))
    assert matrix.shape == (4, 64)
    assert np.array_equal(matrix.dequantised(), to_float32(Q4_1, matrix.raw.reshape(4, 40)))


def test_the_layout_of_q4_1() -> None:
    halves = np.array([2.0, -1.0], "<f2").view(np.uint8)
    nibbles = np.arange(16, dtype=np.uint8) | (np.arange(16, dtype=np.uint8)[::-1] << 4)
    [row] = QuantisedMatrix("q4_1", np.concatenate([halves, nibbles])[None, None]).dequantised()
    assert row.tolist() == [2.0 * q - 1.0 for q in [*range(16), *reversed(range(16))]]


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("stored", [F32, F16, BF16])
def test_numbers_that_are_not_finite_are_found(stored: TensorFormat, poison: float) -> None:
    values = some(3, 32)
    raw = stored_in(stored, values)
    assert are_finite(stored, raw)
    values[1, 7] = poison
    assert not are_finite(stored, stored_in(stored, values))


@pytest.mark.parametrize(("stored", "at"), [(Q8_0, 0), (Q4_1, 0), (Q4_1, 2)])
def test_scales_that_are_not_finite_are_found(stored: TensorFormat, at: int) -> None:
    raw = stored_in(stored, some(3, 64))
    raw.reshape(3, 2, -1)[..., 2 if stored == Q8_0 else 4 :] = 0xFF  # what is no scale may have any bits
    assert are_finite(stored, raw)
    raw[2, stored.size + at : stored.size + at + 2] = np.array([np.inf], "<f2").view(np.uint8)
    assert not are_finite(stored, raw)


def test_large_numbers_whose_sum_is_infinite_are_finite() -> None:
    assert are_finite(F32, np.full((4, 4), 3e38, np.float32).view(np.uint8))


def test_q8_0_has_the_bits_of_the_gguf_package() -> None:
    weights = some(64, 96, seed=3)
    weights[0] = 0
    weights[1, :32] = np.linspace(-127, 127, 32) / 2  # halves, which are rounded away from zero
    raw = quantise_q8_0(weights)
    assert raw.shape == (64, 3, 34)
    assert np.array_equal(raw.reshape(64, -1), stored_in(Q8_0, weights))


def test_what_q8_0_cannot_hold() -> None:
    with raises(ValueError, snapshot("48 inputs are not groups of 32")):
        quantise_q8_0(some(2, 48))
    with raises(ValueError, snapshot("a scale is out of float16's range")):
        quantise_q8_0(np.full((1, 32), 1e7, np.float32))
    with raises(ValueError, snapshot("a scale is out of float16's range")):
        quantise_q8_0(np.full((1, 32), np.nan, np.float32))


@pytest.mark.torch
def test_bfloat16_is_widened_as_torch_widens() -> None:
    import torch

    values = torch.from_numpy(some(1000)).to(torch.bfloat16)
    assert np.array_equal(to_float32(BF16, values.view(torch.uint8).numpy()), values.float().numpy())
