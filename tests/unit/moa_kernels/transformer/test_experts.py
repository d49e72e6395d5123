"""Layers with experts, sinks and clamped gates: against numpy, exact in any batch, each expert read only where chosen."""

import mmap
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inline_snapshot import snapshot
from moa_kernels import (
    Q4_1,
    Q8_0,
    Experts,
    KernelError,
    Layer,
    Linear,
    QuantisedMatrix,
    Rotary,
    Segment,
    Stack,
    StackShape,
    Tiles,
    pack,
    tile_bytes,
)
from moa_kernels.formats import MXFP4

from tests.support.messages import raises
from tests.unit.moa_kernels.variants_here import check_bits, random_matrix

SHAPE = StackShape(hidden=64, inner=96, heads=4, kv_heads=2, head_dim=32, eps=1e-5)
CLAMPED = replace(SHAPE, activation="clamped_swiglu", gate_limit=0.7)
ROTARY = Rotary(32, {"rope_type": "default", "rope_theta": 1e4})
COUNT, CHOSEN, INNER, LAYERS = 11, 3, 160, 2


def floats(random: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    values: np.ndarray = random.normal(size=shape) * scale / shape[-1] ** 0.5
    return values.astype(np.float32)


def experts_of(seed: int, kind: str, weighs_all: bool, *, reference: bool = False, scale: float = 3.0) -> Experts:
    """A router and experts with biases; of a format, or `float32` weights."""
    random = np.random.default_rng(seed)
    plain = kind == "float32"
    router = Linear([floats(random, COUNT, 64, scale=scale)], floats(random, COUNT), plain=True, reference=reference)

    def read(number: int) -> tuple[Linear, Linear]:
        own = np.random.default_rng([seed, number])
        shapes = ((INNER, 64), (INNER, 64), (64, INNER))
        gate, up, down = (floats(own, *each) if plain else random_matrix(own, kind, *each) for each in shapes)
        biases = floats(own, 2 * INNER), floats(own, 64)
        return (
            Linear([gate, up], biases[0], plain=plain, reference=reference),
            Linear([down], biases[1], plain=plain, reference=reference),
        )

    return Experts(router, CHOSEN, read, weighs_all=weighs_all)


def stack(
    kind: str = "float32", *, shape: StackShape = SHAPE, reference: bool = False, weighs_all: bool = False,
    scale: float = 3.0, sinks: bool = False,
) -> Stack:  # fmt: skip
    """A layer with experts, then one without."""
    layers = []
    for index in range(LAYERS):
        random = np.random.default_rng(index)
        attention = random_matrix if kind != "float32" else lambda own, _, *size: floats(own, *size)
        how: dict[str, Any] = {"plain": kind == "float32", "reference": reference}
        dense = index == LAYERS - 1
        mlp = [attention(random, kind, 192, 64), attention(random, kind, 64, 96)]
        layers.append(
            Layer(
                attention_norm=1 + floats(random, 64),
                qkv=Linear([attention(random, kind, 256, 64)], **how),
                out=Linear([attention(random, kind, 64, 128)], **how),
                mlp_norm=1 + floats(random, 64),
                gate_up=Linear([mlp[0]], **how) if dense else None,
                down=Linear([mlp[1]], **how) if dense else None,
                sinks=floats(random, 4) if sinks else None,
                window=3 if sinks and dense else 0,
                experts=None if dense else experts_of(index, kind, weighs_all, reference=reference, scale=scale),
            )
        )
    return Stack(shape, layers, ROTARY, reference=reference)


def rows_of(count: int, seed: int = 9) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 64)).astype(np.float32)


@pytest.mark.usefixtures("variant", "threads")
@pytest.mark.parametrize("weighs_all", [False, True], ids=["of the chosen", "of all"])
@pytest.mark.parametrize("shape", [SHAPE, CLAMPED], ids=["silu", "clamped"])
@pytest.mark.parametrize("sinks", [False, True], ids=["plain", "sinks"])
def test_layers_with_experts_compute_what_numpy_computes(weighs_all: bool, shape: StackShape, sinks: bool) -> None:
    both = [stack(shape=shape, weighs_all=weighs_all, sinks=sinks, reference=each) for each in (False, True)]
    got, expected = (one.run(rows_of(150), [Segment.chain(one.new_cache(kv="f32"), 150)])[0] for one in both)
    np.testing.assert_allclose(got, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.usefixtures("variant", "threads")
@pytest.mark.parametrize("kind", ["float32", Q4_1, MXFP4])
@pytest.mark.parametrize("kv", ["f16", "q8"])
@pytest.mark.parametrize("scale", [3.0, 0.0], ids=["spread", "all rows to the same experts"])
def test_a_row_has_the_same_bits_alone_in_a_batch_and_in_a_tree(kind: str, scale: float, kv: str) -> None:
    one = stack(kind, scale=scale, sinks=True)
    # More rows to one expert than a block of its rows holds.
    check_bits(one, lambda: one.new_cache(kv=kv), rows_of(200))


@pytest.mark.usefixtures("variant")
def test_equal_scores_go_by_number(tmp_path: Path) -> None:
    """And the experts that no row has chosen are not read: their files' pages stay out of memory."""
    bias = np.array([0, 1, 0, 1, 1, 1, 0, 0], np.float32)
    router = Linear([np.zeros((8, 64), np.float32)], bias, plain=True)
    maps: dict[int, mmap.mmap] = {}

    def read(number: int) -> tuple[Linear, Linear]:
        random = np.random.default_rng(number)
        gate_up, down = random_matrix(random, Q8_0, 192, 64), random_matrix(random, Q8_0, 64, 96)
        return Linear([mapped(gate_up, number)]), Linear([mapped(down, number + 8)])

    def mapped(matrix: QuantisedMatrix, number: int) -> Tiles:
        outputs, inputs = matrix.shape
        tiles = np.zeros(tile_bytes(Q8_0, outputs, inputs), np.uint8)
        pack(Q8_0, matrix.raw, outputs, inputs, tiles)
        path = tmp_path / str(number)
        path.write_bytes(tiles.tobytes())
        with path.open("rb") as file:
            maps[number] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return Tiles(Q8_0, outputs, inputs, np.frombuffer(maps[number], np.uint8))

    experts = Experts(router, 3, read)
    base = stack(Q8_0).layers[0]
    one = Stack(SHAPE, [replace(base, experts=experts)], ROTARY)
    one.run(rows_of(7), [Segment.chain(one.new_cache(kv="f16"), 7)])
    assert {number % 8 for number, each in maps.items() if resident_bytes(each)} == {1, 3, 4}


def resident_bytes(mapped: mmap.mmap) -> int:
    """Of a mapping, as the system counts them."""
    start = np.frombuffer(mapped, np.uint8).ctypes.data
    found = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split(maxsplit=1)[0]
        if "-" in first:
            low, high = (int(each, 16) for each in first.split("-"))
            found = low <= start < high
        elif found and first == "Rss:":
            return int(line.split()[1]) << 10
    raise AssertionError("the mapping is not listed")


@pytest.mark.usefixtures("variant")
def test_scores_that_are_no_numbers_choose_experts_that_exist() -> None:
    one = stack(Q8_0)
    rows = rows_of(3)
    rows[1] = np.nan
    out, _ = one.run(rows, [Segment.chain(one.new_cache(kv="f16"), 3)])
    alone, _ = one.run(rows[:1], [Segment.chain(one.new_cache(kv="f16"), 1)])
    assert np.isnan(out[1]).all()
    assert out[0].tobytes() == alone[0].tobytes()


@pytest.mark.parametrize(("chosen", "count"), [(0, 4), (5, 4), (2, 1025)])
def test_numbers_of_experts_that_make_no_sense_are_refused(chosen: int, count: int) -> None:
    router = Linear([np.zeros((count, 64), np.float32)], plain=True)
    words = f"A row cannot have {chosen} of {count} experts, of which the kernels take at most 1024."
    with pytest.raises(KernelError, match=words):
        Experts(router, chosen, lambda number: _pair(96))


def test_experts_that_do_not_fit_each_other_are_refused() -> None:
    router = Linear([np.zeros((4, 64), np.float32)], plain=True)
    with raises(
        KernelError, snapshot("Expert 3 has the shapes [128, 64] and [64, 64], expected [192, 64] and [64, 96].")
    ):
        Experts(router, 2, lambda number: _pair(96 if number < 3 else 64))
    with raises(KernelError, snapshot("Expert 1 is not of the form of expert 0: one has a bias or is in float32.")):
        Experts(router, 2, lambda number: _pair(96, plain=number == 1))
    with raises(KernelError, snapshot("The router of experts is not in float32.")):
        Experts(Linear([np.zeros((4, 64), np.float32)]), 2, lambda number: _pair(96))
    base = stack().layers[0]
    narrow = Experts(Linear([np.zeros((4, 32), np.float32)], plain=True), 2, lambda number: _pair(96, hidden=32))
    with raises(KernelError, snapshot("router has the shape [4, 32], expected [4, 64].")):
        Stack(SHAPE, [replace(base, experts=narrow)], ROTARY)
    with raises(KernelError, snapshot("A layer has neither an MLP nor experts.")):
        Stack(SHAPE, [replace(base, experts=None)], ROTARY)
    with raises(KernelError, snapshot("sinks has the shape (3,), expected (4,).")):
        Stack(SHAPE, [replace(base, sinks=np.zeros(3, np.float32))], ROTARY)


def _pair(inner: int, *, hidden: int = 64, plain: bool = False) -> tuple[Linear, Linear]:
    gate_up, down = np.zeros((2 * inner, hidden), np.float32), np.zeros((hidden, inner), np.float32)
    return Linear([gate_up], plain=plain), Linear([down], plain=plain)
