import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from moa_kernels import (
    FORMATS,
    PLAIN,
    KernelError,
    Linear,
    QuantisedMatrix,
    Tiles,
    in_four_bits,
    pack,
    quantised,
    tile_bytes,
    tile_count,
)
from moa_kernels.bindings import MXFP4
from moa_kernels.library import VARIANT_VARIABLE, library
from moa_shared.protocol.memory_codec import round_to_bfloat16, widen_bfloat16

from tests.unit.moa_kernels.variants_here import HERE, random_matrix

# Infinite, or not a number.
BAD_SCALES = [(MXFP4, 0, b"\xfc")] + [
    (kind, at, bad)
    for kind, stored in FORMATS.items()
    for at in stored.halves
    for bad in (b"\0\x7c", b"\0\xfc", b"\x01\x7e")
]
pytestmark = pytest.mark.skipif(not HERE, reason="no kernels are compiled here (make kernels)")


@pytest.mark.parametrize("kind", FORMATS)
def test_tiles_that_threads_made_give_the_products_of_the_matrix(kind: str) -> None:
    outputs, inputs = 70, 512
    matrix = random_matrix(np.random.default_rng(0), kind, outputs, inputs)
    into = np.full(tile_bytes(kind, outputs, inputs) + 1, 0xEE, np.uint8)[1:]  # any address, and not zeroed
    size = len(into) // tile_count(outputs)

    def part(tile: int) -> npt.NDArray[np.uint8]:
        return into[tile * size : (tile + 1) * size]

    def work(tile: int) -> None:
        pack(kind, matrix.raw, outputs, inputs, part(tile), tiles=range(tile, tile + 1))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, range(tile_count(outputs))))
    x = np.random.default_rng(1).normal(size=(3, inputs)).astype(np.float32)
    np.testing.assert_array_equal(Linear([Tiles(kind, outputs, inputs, into)])(x), Linear([matrix])(x))


@pytest.mark.parametrize("kind", ["q4_k", "q8_0"])
def test_paired_rows_come_into_transformers_order(kind: str) -> None:
    heads, dim, inputs = 3, 16, 256
    matrix = random_matrix(np.random.default_rng(0), kind, heads * dim, inputs)
    into = np.empty(tile_bytes(kind, heads * dim, inputs), np.uint8)
    pack(kind, matrix.raw, heads * dim, inputs, into, heads=heads)
    order = np.arange(heads * dim).reshape(heads, dim // 2, 2).swapaxes(1, 2).reshape(-1)
    x = np.random.default_rng(1).normal(size=(2, inputs)).astype(np.float32)
    tiles = Tiles(kind, heads * dim, inputs, into)
    np.testing.assert_array_equal(Linear([tiles])(x), Linear([matrix.rows(order)])(x))


@pytest.mark.parametrize("stored", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(("kind", "reference"), [("q8_0", quantised), ("q4_1", in_four_bits)])
@pytest.mark.parametrize("variant", HERE)
def test_floats_are_packed_with_the_bits_of_numpy(
    stored: str, kind: str, reference: Callable[..., QuantisedMatrix], variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIANT_VARIABLE, variant)
    heads, outputs, inputs = 3, 3 * 14, 96
    weights = np.random.default_rng(0).normal(size=(outputs, inputs)).astype(np.float32)
    weights[:, :32] *= np.float32(1e-6)  # scales that float16 has few bits for
    weights[3, 32:64], weights[4, 64:] = 0, -0.0
    weights[5] *= np.float32(3e3)
    raw: npt.NDArray[np.generic] = weights
    if stored == "f16":
        raw = weights.astype(np.float16)
        weights = raw.astype(np.float32)
    if stored == "bf16":
        raw = round_to_bfloat16(weights)
        weights = widen_bfloat16(round_to_bfloat16(weights))
    into, expected = (np.empty(tile_bytes(kind, outputs, inputs), np.uint8) for _ in range(2))
    pack(kind, raw.view(np.uint8), outputs, inputs, into, stored=stored, heads=heads)
    pack(kind, reference(weights).raw, outputs, inputs, expected, heads=heads)
    np.testing.assert_array_equal(into, expected)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e7, -1e7])
@pytest.mark.parametrize(("kind", "in_numpy"), [("q8_0", quantised), ("q4_1", in_four_bits)])
def test_floats_that_have_no_scale_are_refused(kind: str, in_numpy: Callable[..., Any], bad: float) -> None:
    weights, into = np.ones((20, 64), np.float32), np.empty(tile_bytes(kind, 20, 64), np.uint8)
    weights[17, 40] = bad
    with pytest.raises(KernelError, match="It holds numbers that are not finite, or too large for their scales"):
        pack(kind, weights.view(np.uint8), 20, 64, into, stored="f32")
    with pytest.raises(KernelError, match="It holds numbers that are not finite, or too large for scales in float16"):
        in_numpy(weights)


@pytest.mark.parametrize(("kind", "at", "bad"), BAD_SCALES)
def test_scales_that_are_not_finite_are_refused(kind: str, at: int, bad: bytes) -> None:
    matrix, into = random_matrix(np.random.default_rng(0), kind, 40, 512), np.empty(tile_bytes(kind, 40, 512), np.uint8)
    matrix.raw[3, 1, at] = 251 if kind == MXFP4 else 0  # the largest exponent
    matrix.check()
    assert bool(np.isfinite(matrix.dequantised()).all())
    matrix.raw[37, -1, at : at + len(bad)] = np.frombuffer(bad, np.uint8)
    for refuses in (matrix.check, lambda: pack(kind, matrix.raw, 40, 512, into)):
        with pytest.raises(KernelError, match="not finite"):
            refuses()


def test_plain_tiles() -> None:
    weights = np.random.default_rng(0).normal(size=(20, 64)).astype(np.float32)
    into = np.empty(tile_bytes(PLAIN, 20, 64), np.uint8)
    pack(PLAIN, weights.view(np.uint8), 20, 64, into)
    x = np.random.default_rng(1).normal(size=(2, 64)).astype(np.float32)
    tiles = Tiles(PLAIN, 20, 64, into)
    np.testing.assert_array_equal(Linear([tiles])(x), Linear([weights], plain=True)(x))
    with pytest.raises(KernelError, match="Some of its parts are packed in float32, and some are not"):
        Linear([tiles, weights])


@pytest.mark.parametrize(("changes", "words"), [
    ({"inputs": 32}, "It has 32 inputs, which is no multiple of 256."),
    ({"outputs": 21}, "Rows of 2880 bytes came for a matrix whose rows take 3024."),
    ({"into": np.empty(4735, np.uint8)}, "Tiles of 4735 bytes came for a matrix whose tiles take 4736."),
    ({"tiles": range(1, 2)}, "Tiles of 4736 bytes came for a matrix whose tiles take 2368."),
    ({"stored": "f16"}, "Weights in f16 are not packed as q4_k."),
    ({"heads": 4}, "20 rows are no pairs of 4 heads."),
    ({"tiles": range(1, 3)}, "The tiles range(1, 3) were asked for of 2."),
])  # fmt: skip
def test_what_does_not_fit_is_refused(changes: dict[str, Any], words: str) -> None:
    matrix = random_matrix(np.random.default_rng(0), "q4_k", 20, 256)
    into = np.empty(tile_bytes("q4_k", 20, 256), np.uint8)
    given: dict[str, Any] = {"kind": "q4_k", "source": matrix.raw, "outputs": 20, "inputs": 256, "into": into}
    with pytest.raises(KernelError, match=re.escape(words)):
        pack(**given | changes)
    with pytest.raises(KernelError, match="Tiles of 4735 bytes came for a matrix whose tiles take 4736"):
        Tiles("q4_k", 20, 256, into[1:])


def test_the_library_knows_the_formats_of_the_table() -> None:
    loaded = library()
    assert loaded is not None
    assert sorted(stored.number for stored in FORMATS.values()) == list(range(1, len(FORMATS) + 1))
    for stored in FORMATS.values():
        least = 16 * stored.size
        assert least <= loaded.moa_tile_bytes(stored.number, stored.values) <= 1.06 * least
