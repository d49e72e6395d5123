"""Decoder layers against those in numpy, and what they refuse."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from inline_snapshot import snapshot
from moa_kernels import KV_FORMATS, Cache, Heads, KernelError, Layer, Linear, Rotary, Segment, Stack, StackShape
from moa_kernels.transformer import stack

from tests.support.messages import raises
from tests.unit.moa_kernels.variants_here import HERE, TREE, check_bits

SHAPE = StackShape(hidden=64, inner=96, heads=4, kv_heads=2, head_dim=32, eps=1e-5)
ROTARY = {"rope_type": "default", "rope_theta": 1e4}
LAYERS = 3
Parts = dict[str, np.ndarray]


def parts(shape: StackShape, seed: int, *, norms: bool) -> Parts:
    random = np.random.default_rng(seed)
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    wide = queries if shape.reads_memory else queries + 2 * keys

    def matrix(outputs: int, inputs: int) -> np.ndarray:
        values: np.ndarray = random.normal(size=(outputs, inputs)) / inputs**0.5
        return values.astype(np.float32)

    def vector(width: int, mean: float) -> np.ndarray:
        return random.normal(mean, 0.1, width).astype(np.float32)

    made = {
        "attention_norm": vector(shape.hidden, 1),
        "qkv": matrix(wide, shape.hidden),
        "bias": vector(wide, 0),
        "out": matrix(shape.hidden, queries),
        "mlp_norm": vector(shape.hidden, 1),
        "gate_up": matrix(2 * shape.inner, shape.hidden),
        "down": matrix(shape.hidden, shape.inner),
    }
    if norms and not shape.reads_memory:
        made |= {"query_norm": vector(shape.head_dim, 1), "key_norm": vector(shape.head_dim, 1)}
    return made


def layer(made: Parts, **how: Any) -> Layer:
    return Layer(
        attention_norm=made["attention_norm"],
        qkv=Linear([made["qkv"]], made["bias"], **how),
        out=Linear([made["out"]], **how),
        mlp_norm=made["mlp_norm"],
        gate_up=Linear([made["gate_up"]], **how),
        down=Linear([made["down"]], **how),
        query_norm=made.get("query_norm"),
        key_norm=made.get("key_norm"),
    )


def stacks(shape: StackShape = SHAPE, *, norms: bool = False) -> tuple[Stack, Stack]:
    """The same float32 weights in the kernels and in numpy."""
    made = [parts(shape, seed, norms=norms) for seed in range(LAYERS)]
    rotary = Rotary(shape.head_dim, ROTARY)
    return (
        Stack(shape, [layer(each, plain=True) for each in made], rotary),
        Stack(shape, [layer(each, reference=True) for each in made], rotary, reference=True),
    )


def states(rows: int, seed: int = 9, width: int = 64) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)


def filled(one: Stack, past: int, *, kv: str, seed: int = 0) -> Cache:
    cache, random = one.new_cache(kv=kv), np.random.default_rng(seed)
    for index in range(LAYERS):
        keys, values = random.normal(size=(2, past, one.shape.kv_heads, one.shape.head_dim)).astype(np.float32)
        cache.write(index, keys, values)
    cache.length = past
    return cache


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize("norms", [False, True], ids=["plain", "norms of queries and keys"])
@pytest.mark.parametrize("kv", KV_FORMATS)
@pytest.mark.parametrize("state_layers", [(), (0,), (2, LAYERS), (LAYERS, 0)])
def test_layers_compute_what_numpy_computes(norms: bool, kv: str, state_layers: tuple[int, ...]) -> None:
    results = []
    for one in stacks(norms=norms):
        caches = [filled(one, past, kv=kv, seed=past) for past in (0, 63, 130)]
        segments = [Segment.chain(caches[0], 5), Segment.tree(caches[1], TREE), Segment.chain(caches[2], 70, 200)]
        rows = states(5 + len(TREE) + 70)
        before = rows.copy()
        out, entering = one.run(rows, segments, state_layers)
        assert tuple(entering) == state_layers or not one.compiled
        np.testing.assert_array_equal(rows, before)
        for segment in segments:
            segment.cache.length += segment.rows
        results.append(
            (out, *(entering[layer] for layer in state_layers), *(cache.read(0, cache.length) for cache in caches))
        )
    close: dict[str, Any] = {
        "atol": {"f32": 5e-5, "f16": 4e-3, "q8": 4e-2}[kv],
        "rtol": {"f32": 1e-4, "f16": 1e-3, "q8": 1e-2}[kv],
    }  # what is rounded may be rounded the other way
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, **close)
    if 0 in state_layers:
        np.testing.assert_array_equal(results[0][1 + state_layers.index(0)], states(5 + len(TREE) + 70))


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize("plain", [True, False], ids=["float32", "quantised"])
def test_attention_reads_the_rows_as_they_are_where_there_is_no_norm_before_it(plain: bool) -> None:
    made = [parts(SHAPE, seed, norms=not plain) for seed in range(LAYERS)]
    bare = [replace(layer(each, plain=plain), attention_norm=None) for each in made]
    in_numpy = [replace(layer(each, reference=True), attention_norm=None) for each in made]
    rotary = Rotary(32, ROTARY)
    normed = Stack(SHAPE, [layer(each, plain=plain) for each in made], rotary)
    ours, theirs = Stack(SHAPE, bare, rotary), Stack(SHAPE, in_numpy, rotary, reference=True)
    got, expected, other = (
        one.run(states(40), [Segment.chain(filled(one, 20, kv="f16"), 40)])[0] for one in (ours, theirs, normed)
    )
    assert np.linalg.norm(got - expected) < (1e-3 if plain else 0.03) * np.linalg.norm(expected)
    assert np.linalg.norm(got - other) > 0.03 * np.linalg.norm(expected)


@pytest.mark.usefixtures("variant")
def test_filling_writes_what_running_writes() -> None:
    for one in stacks(norms=True):
        rows, kept = states(9), []
        for run in (one.run, one.fill):
            cache = filled(one, 60, kv="f16")
            run(rows, [Segment.chain(cache, 9)])
            cache.length += 9
            kept.append(cache.read(0, 69))
        np.testing.assert_array_equal(kept[0], kept[1])


@pytest.mark.usefixtures("variant")
def test_memory_is_read_and_not_written() -> None:
    shape = replace(SHAPE, reads_memory=True)
    results = []
    for one in stacks(shape):
        cache = filled(one, 100, kv="f32")
        before = cache.read(0, 100)
        positions = np.array([100, 101, 101, 7], np.int32)
        out, _ = one.run(states(4), [Segment.memory(cache, positions)])
        np.testing.assert_array_equal(cache.read(0, 100), before)
        results.append(out)
        with raises(KernelError, snapshot("A stack that reads memory writes no keys and values.")):
            one.fill(states(4), [Segment.memory(cache, positions)])
    np.testing.assert_allclose(results[0], results[1], atol=5e-5, rtol=1e-4)


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize("kv", KV_FORMATS)
@pytest.mark.parametrize("quantised", [True, False])
def test_rows_have_the_same_bits_alone_and_together(quantised: bool, kv: str) -> None:
    one = stacks()[0]
    if quantised:
        one = Stack(SHAPE, [layer(parts(SHAPE, seed, norms=False)) for seed in range(LAYERS)], Rotary(32, ROTARY))
    check_bits(one, lambda: filled(one, 65, kv=kv), states(len(TREE) + 30))


@pytest.mark.usefixtures("variant")
def test_two_segments_of_one_cache_see_each_other_as_one_would() -> None:
    """States that come late are computed together with rows behind them."""
    one, rows = stacks()[0], states(5)
    whole, split = one.new_cache(kv="f32"), one.new_cache(kv="f32")
    expected, _ = one.run(rows, [Segment.chain(whole, 5)])
    early = Segment.chain(split, 3)
    split.length = 3
    got, _ = one.run(rows, [early, Segment.chain(split, 2)])
    np.testing.assert_array_equal(got, expected)


def test_sizes_that_the_kernels_do_not_take_are_computed_in_numpy() -> None:
    shape = StackShape(hidden=20, inner=20, heads=2, kv_heads=1, head_dim=6, eps=1e-5)
    made = [layer(parts(shape, seed, norms=False), reference=True) for seed in range(LAYERS)]
    one, rows = Stack(shape, made, Rotary(6, ROTARY), reference=True), states(4, width=20)
    cache = one.new_cache(kv="f32")
    whole, _ = one.run(rows, [Segment.chain(cache, 4)])
    one.run(rows[:3], [Segment.chain(cache, 3)])
    cache.length = 3
    last, _ = one.run(rows[3:], [Segment.chain(cache, 1)])
    np.testing.assert_allclose(last[0], whole[3], rtol=0, atol=1e-4)


@pytest.mark.skipif(not HERE, reason="there are no kernels for this CPU")
@pytest.mark.parametrize(
    ("name", "other", "words"),
    [
        ("qkv", lambda made: Linear([made["qkv"][:-1]]), r"qkv has the shape \[255, 64\], expected \[256, 64\]"),
        ("out", lambda made: Linear([made["out"][:, :96]]), r"out has the shape \[64, 96\], expected \[64, 128\]"),
        ("gate_up", lambda made: Linear([made["down"]]), "gate_up has the shape"),
        ("down", lambda made: Linear([made["gate_up"]]), "down has the shape"),
        ("down", lambda made: Linear([made["down"]], reference=True), "down and its stack are not both"),
        ("attention_norm", lambda _: np.ones(32, np.float32), r"attention_norm has the shape \(32,\)"),
        ("mlp_norm", lambda _: np.ones((64, 1), np.float32), "mlp_norm has the shape"),
        ("query_norm", lambda _: np.ones(64, np.float32), r"query_norm .* expected \(32,\)"),
        ("key_norm", lambda _: np.ones(16, np.float32), "key_norm has the shape"),
    ],
)
def test_layers_that_do_not_fit_are_refused_by_name(name: str, other: Callable[[Parts], Any], words: str) -> None:
    made = parts(SHAPE, 0, norms=True)
    right = layer(made)
    with pytest.raises(KernelError, match=words):
        Stack(SHAPE, [right, replace(right, **{name: other(made)})], Rotary(32, ROTARY))
    with pytest.raises(KernelError, match="qkv and its stack are not both compiled, or both computed in numpy"):
        Stack(SHAPE, [right], Rotary(32, ROTARY), reference=True)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("hidden", 48, "The hidden size is 48, which is no multiple of 32."),
        ("inner", 40, "The MLP width is 40, which is no multiple of 32."),
        ("head_dim", 48, "The head dimension is 48, which is no multiple of 32."),
        ("heads", 3, "3 query heads cannot share 2 key/value heads evenly."),
        ("kv_heads", 3, "4 query heads cannot share 3 key/value heads evenly."),
    ],
)
def test_sizes_that_are_not_taken_are_refused_by_name(name: str, value: int, words: str) -> None:
    shape = replace(SHAPE, **{name: value})  # type: ignore[arg-type]
    with pytest.raises(KernelError, match=words):
        Stack(shape, [], Rotary(shape.head_dim, ROTARY))
    with pytest.raises(KernelError, match="The rotary angles are for heads of 64 numbers, not 32"):
        Stack(SHAPE, [layer(parts(SHAPE, 0, norms=False))], Rotary(64, ROTARY))
    for size, reference in product((0, -32), (False, True)):
        with pytest.raises(KernelError, match=f"{name}={size}, .*has a size below 1"):
            Stack(replace(SHAPE, **{name: size}), [], Rotary(32, ROTARY), reference=reference)  # type: ignore[arg-type]


def test_calls_that_do_not_fit_are_refused() -> None:
    for one in stacks():
        cache = filled(one, 5, kv="f32")
        segment = Segment.chain(cache, 3)
        for rows in (states(2), states(3, width=96), states(3)[0]):
            with pytest.raises(KernelError, match=r"came for segments of 3 rows of 64"):
                one.run(rows, [segment])
        with raises(KernelError, snapshot("Rows of the shape (0, 64) came for segments of 0 rows of 64.")):
            one.run(states(0), [])
        for layer_index in (-1, LAYERS + 1):
            with pytest.raises(KernelError, match=f"state of layer {layer_index} was requested from a stack of 3"):
                one.run(states(3), [segment], [layer_index])
        other = type(cache)([Heads(2, 32)] * (LAYERS + 1), kv="f32")
        with raises(KernelError, snapshot("A segment's cache belongs to another stack.")):
            one.run(states(3), [Segment.chain(other, 3)])
        with raises(KernelError, snapshot("The caches of one forward have different precisions.")):
            one.run(states(6), [segment, Segment.chain(filled(one, 5, kv="f16"), 3)])
        with raises(KernelError, snapshot("3 rows of a forward see slots that their cache of 8 rows does not hold.")):
            one.run(states(3), [replace(segment, seen=segment.seen + np.int32(9))])
        assert cache.length == 5


@pytest.mark.skipif(not HERE, reason="there are no kernels for this CPU")
def test_a_cache_of_the_other_kind_is_refused() -> None:
    ours, theirs = stacks()
    with raises(KernelError, snapshot("A cache of the kernels was used without kernels.")):
        theirs.run(states(3), [Segment.chain(filled(ours, 5, kv="f32"), 3)])
    with raises(KernelError, snapshot("A cache in numpy was used with kernels.")):
        ours.run(states(3), [Segment.chain(filled(theirs, 5, kv="f32"), 3)])


@pytest.mark.skipif(not HERE, reason="there are no kernels for this CPU")
def test_no_memory_in_c_is_a_memory_error(monkeypatch: pytest.MonkeyPatch) -> None:
    one = stacks()[0]
    cache = filled(one, 5, kv="f32")
    exhausted = SimpleNamespace(moa_run=lambda *_: -1)
    with monkeypatch.context() as patch:
        patch.setattr(stack, "library", lambda: exhausted)
        with raises(MemoryError, snapshot("There is no memory for a forward.")):
            one.run(states(3), [Segment.chain(cache, 3)])
    assert cache.length == 5
