"""Caches filled without an output, and stacks in numpy for sizes that the kernels do not take."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from inline_snapshot import snapshot
from moa_kernels import KernelError, Layer, Linear, Rotary, Segment, Stack, StackShape
from moa_kernels.library import library

from tests.support.messages import raises

ROTARY = {"rope_type": "default", "rope_theta": 500.0}
Rows = npt.NDArray[np.float32]


def normal(*shape: int, seed: int) -> Rows:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def make_stack(hidden: int = 64, head_dim: int = 32, *, plain: bool = False, in_numpy: bool = False) -> Stack:
    """Two layers of two query heads and one key/value head, the same weights for any arithmetic."""

    def linear(outputs: int, inputs: int, seed: int) -> Linear:
        weight = normal(outputs, inputs, seed=seed) * np.float32(inputs**-0.5)
        return Linear([weight], plain=plain, reference=in_numpy)

    layers = [
        Layer(
            attention_norm=1 + normal(hidden, seed=seed) / np.float32(5),
            qkv=linear(4 * head_dim, hidden, seed + 1),
            out=linear(hidden, 2 * head_dim, seed + 2),
            mlp_norm=1 + normal(hidden, seed=seed + 3) / np.float32(5),
            gate_up=linear(2 * hidden, hidden, seed + 4),
            down=linear(hidden, hidden, seed + 5),
        )
        for seed in (10, 20)
    ]
    shape = StackShape(hidden, hidden, 2, 1, head_dim, 1e-5)
    return Stack(shape, layers, Rotary(head_dim, ROTARY), reference=in_numpy)


@pytest.mark.parametrize("in_numpy", [False, True])
def test_a_filled_cache_holds_what_a_run_leaves(in_numpy: bool) -> None:
    stack, rows = make_stack(in_numpy=in_numpy), normal(70, 64, seed=1)
    filled, ran = stack.new_cache(kv="f32"), stack.new_cache(kv="f32")
    stack.fill(rows[:3], [Segment.chain(filled, 3)])
    filled.length = 3
    stack.fill(rows[3:], [Segment.chain(filled, 67)])
    stack.run(rows, [Segment.chain(ran, 70)])
    filled.length = ran.length = 70
    if in_numpy or library() is None:  # its sums depend on what is computed together
        np.testing.assert_allclose(filled.read(0, 70), ran.read(0, 70), rtol=0, atol=1e-4)
    else:
        np.testing.assert_array_equal(filled.read(0, 70), ran.read(0, 70))


def test_two_segments_of_one_cache_see_each_other_as_one_would() -> None:
    """States that come late are computed together with rows behind them."""
    stack, rows = make_stack(), normal(5, 64, seed=2)
    whole, split = stack.new_cache(kv="f32"), stack.new_cache(kv="f32")
    expected, _ = stack.run(rows, [Segment.chain(whole, 5)])
    early = Segment.chain(split, 3)
    split.length = 3
    got, _ = stack.run(rows, [early, Segment.chain(split, 2)])
    if library() is None:
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4)
    else:
        np.testing.assert_array_equal(got, expected)


def test_numpy_computes_what_the_kernels_do() -> None:
    rows = normal(6, 64, seed=3)
    outputs = []
    for stack in (make_stack(plain=True), make_stack(in_numpy=True)):
        out, _ = stack.run(rows, [Segment.chain(stack.new_cache(kv="f32"), 6)])
        outputs.append(out)
    np.testing.assert_allclose(outputs[0], outputs[1], rtol=0, atol=1e-4)


def test_sizes_that_the_kernels_do_not_take_are_refused_and_computed_in_numpy() -> None:
    with raises(KernelError, snapshot("It has 20 inputs, which is no multiple of 32.")):
        make_stack(hidden=20, head_dim=6)
    stack = make_stack(hidden=20, head_dim=6, in_numpy=True)
    cache = stack.new_cache(kv="f32")
    whole, _ = stack.run(normal(4, 20, seed=4), [Segment.chain(cache, 4)])
    stack.run(normal(4, 20, seed=4)[:3], [Segment.chain(cache, 3)])
    cache.length = 3
    last, _ = stack.run(normal(4, 20, seed=4)[3:], [Segment.chain(cache, 1)])
    np.testing.assert_allclose(last[0], whole[3], rtol=0, atol=1e-4)


@pytest.mark.skipif(library() is None, reason="there are no compiled kernels")
def test_compiled_layers_do_not_make_a_stack_in_numpy() -> None:
    compiled = make_stack()
    with raises(KernelError, snapshot("qkv and its stack are not both compiled, or both computed in numpy.")):
        Stack(compiled.shape, compiled.layers, compiled.rotary, reference=True)


def test_a_stack_that_reads_memory_fills_nothing() -> None:
    made = make_stack()
    layer = made.layers[0]
    queries = Linear([normal(64, 64, seed=5)])
    reads = Layer(layer.attention_norm, queries, layer.out, layer.mlp_norm, layer.gate_up, layer.down)
    stack = Stack(StackShape(64, 64, 2, 1, 32, 1e-5, reads_memory=True), [reads], made.rotary)
    with raises(KernelError, snapshot("A stack that reads memory writes no keys and values.")):
        stack.fill(normal(1, 64, seed=6), [Segment.chain(stack.new_cache(kv="f32"), 1)])
