from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from inline_snapshot import snapshot
from moa_kernels import FORMATS, PLAIN, KernelError, Linear, Tiles, pack, tile_bytes, tile_count
from moa_kernels.library import library

from tests.support.messages import raises
from tests.unit.moa_kernels.variants_here import HERE, random_matrix

pytestmark = pytest.mark.skipif(not HERE, reason="no kernels are compiled here (make kernels)")


@pytest.mark.parametrize("kind", FORMATS)
def test_tiles_take_hardly_more_bytes_than_the_file(kind: str) -> None:
    stored = FORMATS[kind]
    assert tile_bytes(kind, 160, 256) <= 1.06 * 160 * 256 / stored.values * stored.size


@pytest.mark.parametrize("kind", FORMATS)
def test_tiles_that_threads_made_give_the_products_of_the_matrix(kind: str) -> None:
    outputs, inputs = 70, 512
    matrix = random_matrix(np.random.default_rng(0), kind, outputs, inputs)
    into = np.full(tile_bytes(kind, outputs, inputs) + 1, 0xEE, np.uint8)[1:]  # any address, and not zeroed
    with ThreadPoolExecutor(3) as pool:
        list(
            pool.map(
                lambda tile: pack(kind, matrix.raw, outputs, inputs, into, tiles=range(tile, tile + 1)),
                range(tile_count(outputs)),
            )
        )
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


def test_plain_tiles() -> None:
    weights = np.random.default_rng(0).normal(size=(20, 64)).astype(np.float32)
    into = np.empty(tile_bytes(PLAIN, 20, 64), np.uint8)
    pack(PLAIN, weights.view(np.uint8), 20, 64, into)
    x = np.random.default_rng(1).normal(size=(2, 64)).astype(np.float32)
    tiles = Tiles(PLAIN, 20, 64, into)
    np.testing.assert_array_equal(Linear([tiles])(x), Linear([weights], plain=True)(x))
    with raises(KernelError, snapshot("Some of its parts are packed in float32, and some are not.")):
        Linear([tiles, weights])


def test_what_does_not_fit_is_refused() -> None:
    matrix = random_matrix(np.random.default_rng(0), "q4_k", 20, 256)
    into = np.empty(tile_bytes("q4_k", 20, 256), np.uint8)
    with raises(KernelError, snapshot("It has 32 inputs, which is no multiple of 256.")):
        tile_bytes("q4_k", 20, 32)
    with raises(KernelError, snapshot("Blocks of 2736 bytes came for a matrix whose blocks take 2880.")):
        pack("q4_k", matrix.raw[:19], 20, 256, into)
    with raises(KernelError, snapshot("Tiles of 4735 bytes came for a matrix whose tiles take 4736.")):
        pack("q4_k", matrix.raw, 20, 256, into[1:])
    with raises(KernelError, snapshot("20 rows are no pairs of 4 heads.")):
        pack("q4_k", matrix.raw, 20, 256, into, heads=4)
    with raises(KernelError, snapshot("The tiles range(1, 3) were asked for of 2.")):
        pack("q4_k", matrix.raw, 20, 256, into, tiles=range(1, 3))
    with raises(KernelError, snapshot("Tiles of 4735 bytes came for a matrix whose tiles take 4736.")):
        Tiles("q4_k", 20, 256, into[1:])


def test_the_library_knows_the_formats_of_the_table() -> None:
    loaded = library()
    assert loaded is not None
    assert sorted(stored.number for stored in FORMATS.values()) == list(range(1, len(FORMATS) + 1))
    for stored in FORMATS.values():
        least = 16 * stored.size
        assert least <= loaded.moa_tile_bytes(stored.number, stored.values) <= 1.06 * least
