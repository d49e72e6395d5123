"""Decoder layers of every form against those in numpy, their bits alone and among others, and what they refuse."""

import mmap
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from moa_kernels import (
    KV_FORMATS,
    PLAIN,
    Q4_1,
    Q8_0,
    BesideNorms,
    Cache,
    Experts,
    Heads,
    KernelError,
    Layer,
    LayerEmbedding,
    Linear,
    QuantisedMatrix,
    Rotary,
    Segment,
    SharedExpert,
    Stack,
    StackShape,
    Tiles,
    pack,
    tile_bytes,
)
from moa_kernels.bindings import MXFP4
from moa_kernels.transformer import stack

from tests.unit.moa_kernels.variants_here import (
    HERE,
    STATE,
    TREE,
    check_bits,
    delta_net_of,
    fill_states,
    floats,
    layer_of,
    linear_of,
    matrices_of,
    norm_of,
    random_matrix,
)

SHAPE = StackShape(hidden=64, inner=96, heads=4, kv_heads=2, head_dim=32, eps=1e-5)
CLAMPED = replace(SHAPE, activation="clamped_swiglu", gate_limit=0.7)
DIFFERING = replace(SHAPE, activation="gelu_tanh", score_scale=0.3, embedding=32)
NARROW, WIDE = Heads(2, 32), Heads(1, 96)
ANGLES = {"rope_type": "default", "rope_theta": 1e4}
ROTARIES = [Rotary(32, ANGLES), Rotary(96, ANGLES | {"rope_type": "proportional", "partial_rotary_factor": 0.25})]
COUNT, CHOSEN, INNER, LAYERS = 11, 3, 160, 3
needs_kernels = pytest.mark.skipif(not HERE, reason="there are no kernels for this CPU")


def experts_of(seed: int, kind: str, *, reference: bool = False, scale: float = 3.0, **how: Any) -> Experts:
    """A router and experts with biases."""
    random = np.random.default_rng(seed)
    router = Linear([floats(random, COUNT, 64, scale=scale)], floats(random, COUNT), plain=True, reference=reference)

    def read(number: int) -> tuple[Linear, Linear]:
        own = np.random.default_rng([seed, number])
        sizes = (2 * INNER, 64), (64, INNER)
        gate_up, down = (linear_of(own, *size, kind, reference=reference, bias=True) for size in sizes)
        return gate_up, down

    return Experts(router, CHOSEN, read, **how)


def plain_layers(
    kind: str = PLAIN, *, shape: StackShape = SHAPE, norms: bool = False, reference: bool = False, **how: Any
) -> list[Layer]:
    own = np.random.default_rng(5)
    normed = {name: norm_of(own, shape.head_dim) for name in ("query_norm", "key_norm")} if norms else {}
    return [layer_of(shape, seed, kind, reference=reference, **normed | how) for seed in range(LAYERS)]


def plain_stack(kind: str = PLAIN, *, shape: StackShape = SHAPE, reference: bool = False, **how: Any) -> Stack:
    rotary = Rotary(shape.head_dim, ANGLES)
    return Stack(shape, plain_layers(kind, shape=shape, reference=reference, **how), rotary, reference=reference)


def expert_stack(
    kind: str = PLAIN, *, shape: StackShape = SHAPE, reference: bool = False, sinks: bool = False, **how: Any
) -> Stack:
    """A layer with experts, then one without."""
    weights = floats(np.random.default_rng(3), 4) if sinks else None
    experts = experts_of(0, kind, reference=reference, **how)
    layers = [
        layer_of(shape, 0, kind, reference=reference, experts=experts, sinks=weights),
        layer_of(shape, 1, kind, reference=reference, sinks=weights, window=3 if sinks else 0),
    ]
    return Stack(shape, layers, ROTARIES[0], reference=reference)


def differing_layer(number: int, heads: Heads, kind: str = "floats", *, reference: bool = False, **own: Any) -> Layer:
    random = np.random.default_rng([number, 1])

    def norm() -> np.ndarray:
        return norm_of(random, 64)

    if own.pop("reads_embedding", False):
        own["attention_embedding_norm"] = norm_of(random, 32)
    if own.pop("beside", False):
        experts = experts_of(number, kind, reference=reference, scales=norm_of(random, COUNT))
        own |= {"experts": experts, "beside": BesideNorms(*(norm() for _ in range(4)))}
    into, out = (linear_of(random, *size, kind, reference=reference) for size in ((32, 64), (64, 32)))
    norms = {name: norm_of(random, heads.dim) for name in ("query_norm", "key_norm")}
    norms |= {"attention_out_norm": norm(), "mlp_out_norm": norm(), "value_norm": np.ones(heads.dim, np.float32)}
    usual: dict[str, Any] = {"heads": heads, "rotary": 0 if heads == NARROW else 1, "out_scale": 0.7}
    usual |= norms | {"embedding": LayerEmbedding(into, out, norm())}
    return layer_of(DIFFERING, number, kind, reference=reference, **usual | own)


def differing_stack(kind: str = "floats", *, reference: bool = False) -> Stack:
    """Layers that differ in heads and widths, read others' keys and values or embeddings, or add these."""
    own: list[tuple[Heads, dict[str, Any]]] = [
        (NARROW, {"window": 5}),
        (WIDE, {"keys_are_values": True, "reads_embedding": True}),
        (NARROW, {"window": 5, "beside": True}),
        (WIDE, {"inner": 160, "reads_layer": 1}),
        (NARROW, {"inner": 160, "reads_layer": 2, "window": 5, "reads_embedding": True, "attention_norm": None}),
    ]
    layers = [differing_layer(at, heads, kind, reference=reference, **each) for at, (heads, each) in enumerate(own)]
    return Stack(DIFFERING, layers, ROTARIES, reference=reference)


def hybrid_stack(kind: str = PLAIN, *, reference: bool = False, **how: Any) -> Stack:
    """Gated delta nets, one of them with experts and one that all rows share, below gated attention."""
    state = STATE._replace(tiled=True)
    nets = [delta_net_of(64, 7, kind, reference=reference), None]
    nets.append(delta_net_of(64, 8, kind, state=state, reference=reference, beta_scale=2.0))
    random = np.random.default_rng(4)
    gate_up, down = (linear_of(random, *size, kind, reference=reference) for size in ((320, 64), (64, 160)))
    experts = experts_of(0, kind, reference=reference, shared=SharedExpert(gate_up, down, floats(random, 64)))
    layers = [
        layer_of(SHAPE, at, kind, reference=reference, delta_net=net, output_gate=net is None, experts=own)
        for at, (net, own) in enumerate(zip(nets, (experts, None, None), strict=True))
    ]
    return Stack(SHAPE, layers, ROTARIES[0], reference=reference)


def rows_of(count: int, seed: int = 9, width: int = 64) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, width)).astype(np.float32)


def embeddings_of(one: Stack, count: int) -> np.ndarray | None:
    if not one.shape.embedding:
        return None
    return np.random.default_rng(1).normal(size=(count, len(one.layers), 32)).astype(np.float32)


def filled(one: Stack, past: int, *, kv: str, seed: int = 0) -> Cache:
    cache, random = one.new_cache(kv=kv), np.random.default_rng(seed)
    for index, heads in enumerate(cache.heads):
        keys, values = random.normal(size=(2, past, *heads)).astype(np.float32)
        cache.write(index, keys, values)
    if cache.states.shapes:
        fill_states(cache, past, seed)
    cache.length = past
    return cache


Build = Callable[..., Stack]
STACKS: dict[str, Build] = {
    "plain": plain_stack,
    "norms of queries and keys": lambda **how: plain_stack(norms=True, **how),
    "differing": lambda **how: differing_stack(**{"kind": PLAIN} | how),
    "hybrid": hybrid_stack,
    "experts": expert_stack,
    "experts, weighed of all": lambda **how: expert_stack(weighs_all=True, **how),
    "experts, clamped, sinks": lambda **how: expert_stack(shape=CLAMPED, sinks=True, **how),
}


@pytest.mark.usefixtures("variant", "threads")
@pytest.mark.parametrize("name", STACKS)
@pytest.mark.parametrize("kv", KV_FORMATS)
@pytest.mark.parametrize("state_layers", [(), (2, 0)])
def test_layers_compute_what_numpy_computes(name: str, kv: str, state_layers: tuple[int, ...]) -> None:
    results, count = [], 5 + len(TREE) + 70
    for one in (STACKS[name](), STACKS[name](reference=True)):
        caches = [filled(one, past, kv=kv, seed=past) for past in (0, 63, 130)]
        segments = [Segment.chain(caches[0], 5, drafted=1), Segment.tree(caches[1], TREE, drafted=len(TREE))]
        segments.append(Segment.chain(caches[2], 70, 200))
        rows = rows_of(count)
        out, entering = one.run(rows, segments, state_layers, embeddings=embeddings_of(one, count))
        assert tuple(entering) == state_layers or not one.compiled
        np.testing.assert_array_equal(rows, rows_of(count))
        for segment in segments:
            segment.cache.length += segment.rows
        states = [entering[layer] for layer in state_layers]
        results.append((out, *states, *(cache.read(0, cache.length) for cache in caches)))
        results[-1] += tuple(matrices_of(caches[2], layer).reshape(4, 32, 64) for layer in range(len(one.states)))
    close: dict[str, Any] = {
        "atol": {"f32": 2e-4, "f16": 8e-3, "q8": 8e-2}[kv],
        "rtol": {"f32": 1e-4, "f16": 1e-3, "q8": 1e-2}[kv],
    }  # what is rounded may be rounded the other way
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, **close)
    if state_layers:
        np.testing.assert_array_equal(results[0][2], rows_of(count))


@pytest.mark.usefixtures("variant", "threads")
@pytest.mark.parametrize("kv", KV_FORMATS)
@pytest.mark.parametrize(
    ("build", "rows"),
    [
        (plain_stack, 38),
        (lambda: plain_stack("floats"), 38),
        (differing_stack, 78),
        (hybrid_stack, 38),
        (lambda: hybrid_stack("floats"), 38),
        # More rows to one expert than a block of its rows holds.
        *((lambda kind=kind: expert_stack(kind, sinks=True), 200) for kind in (PLAIN, Q4_1, MXFP4)),
        (lambda: expert_stack(Q4_1, scale=0.0, sinks=True), 200),  # all rows to the same experts
    ],
)
def test_a_row_has_the_same_bits_alone_in_a_batch_and_in_a_tree(build: Build, rows: int, kv: str) -> None:
    one = build()
    check_bits(one, lambda: filled(one, 65, kv=kv), rows_of(rows), embeddings_of(one, rows))


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize(("kind", "bound"), [(PLAIN, 1e-3), ("floats", 0.03)])
def test_attention_reads_the_rows_as_they_are_where_there_is_no_norm_before_it(kind: str, bound: float) -> None:
    ours, theirs = (plain_stack(kind, attention_norm=None, reference=each) for each in (False, True))
    got, expected, other = (
        one.run(rows_of(40), [Segment.chain(filled(one, 20, kv="f16"), 40)])[0]
        for one in (ours, theirs, plain_stack(kind))
    )
    assert np.linalg.norm(got - expected) < bound * np.linalg.norm(expected)
    assert np.linalg.norm(got - other) > 0.03 * np.linalg.norm(expected)


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize("reference", [False, True])
def test_filling_writes_what_running_writes(reference: bool) -> None:
    one, kept = plain_stack(norms=True, reference=reference), []
    for run in (one.run, one.fill):
        cache = filled(one, 60, kv="f16")
        run(rows_of(9), [Segment.chain(cache, 9)])
        cache.length += 9
        kept.append(cache.read(0, 69))
    np.testing.assert_array_equal(kept[0], kept[1])


@pytest.mark.usefixtures("variant")
def test_memory_is_read_and_not_written() -> None:
    shape = replace(SHAPE, reads_memory=True)
    results = []
    for one in (plain_stack(shape=shape), plain_stack(shape=shape, reference=True)):
        cache = filled(one, 100, kv="f32")
        before = cache.read(0, 100)
        segments = [Segment.memory(cache, np.array([100, 101, 101, 7], np.int32))]
        out, _ = one.run(rows_of(4), segments)
        np.testing.assert_array_equal(cache.read(0, 100), before)
        results.append(out)
        with pytest.raises(KernelError, match="A stack that reads memory writes no keys and values"):
            one.fill(rows_of(4), segments)
    np.testing.assert_allclose(results[0], results[1], atol=5e-5, rtol=1e-4)


@pytest.mark.usefixtures("variant")
def test_two_segments_of_one_cache_see_each_other_as_one_would() -> None:
    """States that come late are computed together with rows behind them."""
    one, rows = plain_stack(), rows_of(5)
    whole, split = one.new_cache(kv="f32"), one.new_cache(kv="f32")
    expected, _ = one.run(rows, [Segment.chain(whole, 5)])
    early = Segment.chain(split, 3)
    split.length = 3
    got, _ = one.run(rows, [early, Segment.chain(split, 2)])
    np.testing.assert_array_equal(got, expected)


def test_sizes_that_the_kernels_do_not_take_are_computed_in_numpy() -> None:
    shape = StackShape(hidden=20, inner=20, heads=2, kv_heads=1, head_dim=6, eps=1e-5)
    one, rows = plain_stack(shape=shape, reference=True), rows_of(4, width=20)
    cache = one.new_cache(kv="f32")
    whole, _ = one.run(rows, [Segment.chain(cache, 4)])
    one.run(rows[:3], [Segment.chain(cache, 3)])
    cache.length = 3
    last, _ = one.run(rows[3:], [Segment.chain(cache, 1)])
    np.testing.assert_allclose(last[0], whole[3], rtol=0, atol=1e-4)


@needs_kernels
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

    one = Stack(SHAPE, [layer_of(SHAPE, 0, Q8_0, experts=Experts(router, 3, read))], ROTARIES[0])
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
    one, rows = expert_stack(Q8_0), rows_of(3)
    rows[1] = np.nan
    out, _ = one.run(rows, [Segment.chain(one.new_cache(kv="f16"), 3)])
    first, _ = one.run(rows[:1], [Segment.chain(one.new_cache(kv="f16"), 1)])
    assert np.isnan(out[1]).all()
    assert out[0].tobytes() == first[0].tobytes()


def zeros(outputs: int, inputs: int, **how: Any) -> Linear:
    return Linear([np.zeros((outputs, inputs), np.float32)], **how)


def pair(inner: int, *, hidden: int = 64, plain: bool = False) -> tuple[Linear, Linear]:
    return zeros(2 * inner, hidden, plain=plain), zeros(hidden, inner, plain=plain)


@needs_kernels
@pytest.mark.parametrize(
    ("count", "chosen", "read", "words"),
    [
        (4, 0, lambda _: pair(96), "A row cannot have 0 of 4 experts, of which the kernels take at most 1024."),
        (4, 5, lambda _: pair(96), "A row cannot have 5 of 4 experts"),
        (1025, 2, lambda _: pair(96), "A row cannot have 2 of 1025 experts"),
        (4, 2, lambda at: pair(96 if at < 3 else 64), r"Expert 3 has the shapes \[128, 64\] and \[64, 64\], expected"),
        (4, 2, lambda at: pair(96, plain=at == 1), "Expert 1 is not of the form of expert 0: one has a bias"),
    ],
)
def test_experts_that_do_not_fit_are_refused(count: int, chosen: int, read: Any, words: str) -> None:
    with pytest.raises(KernelError, match=words):
        Experts(zeros(count, 64, plain=True), chosen, read)
    with pytest.raises(KernelError, match=r"The router of experts is not in float32|A row cannot have"):
        Experts(zeros(count, 64), chosen, read)


def reading(source: int) -> Layer:
    return differing_layer(3, NARROW, reads_layer=source)


@needs_kernels
@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("qkv", zeros(255, 64), r"qkv has the shape \[255, 64\], expected \[256, 64\]"),
        ("out", zeros(64, 96), r"out has the shape \[64, 96\], expected \[64, 128\]"),
        ("gate_up", zeros(64, 96), "gate_up has the shape"),
        ("down", zeros(192, 64), "down has the shape"),
        ("down", zeros(64, 96, reference=True), "down and its stack are not both"),
        ("attention_norm", np.ones(32, np.float32), r"attention_norm has the shape \(32,\)"),
        ("mlp_norm", np.ones((64, 1), np.float32), "mlp_norm has the shape"),
        ("query_norm", np.ones(64, np.float32), r"query_norm .* expected \(32,\)"),
        ("key_norm", np.ones(16, np.float32), "key_norm has the shape"),
        ("value_norm", np.ones(64, np.float32), r"value_norm has the shape \(64,\), expected \(32,\)"),
        ("sinks", np.zeros(3, np.float32), r"sinks has the shape \(3,\), expected \(4,\)"),
        ("gate_up", None, "A layer has neither an MLP nor experts"),
    ],
)
def test_a_layer_that_does_not_fit_is_refused_by_name(name: str, value: Any, words: str) -> None:
    right = layer_of(SHAPE, 0)
    with pytest.raises(KernelError, match=words):
        Stack(SHAPE, [right, replace(right, **{name: value})], ROTARIES[0])
    with pytest.raises(KernelError, match="qkv and its stack are not both compiled, or both computed in numpy"):
        Stack(SHAPE, [right], ROTARIES[0], reference=True)


@needs_kernels
@pytest.mark.parametrize(
    ("layers", "words"),
    [
        (lambda first, second, *_: [first, second, reading(1)], "Layer 2 reads .* of layer 1, whose heads differ"),
        (lambda _, second, *__: [reading(1), second], "Layer 0 reads .* of layer 1, which has none for it"),
        (lambda first, _, third, *__: [first, replace(third, beside=None)], "beside an MLP needs the norms of both"),
        (
            lambda _, second, *__: [replace(second, attention_embedding_norm=None)],
            r"qkv has the shape \[480, 96\], expected \[480, 64\]",
        ),
        (
            lambda *layers: [replace(layers[2], experts=Experts(zeros(4, 32, plain=True), 2, narrow))],
            r"router has the shape \[4, 32\], expected \[4, 64\]",
        ),
    ],
)
def test_differing_layers_that_do_not_fit_are_refused(layers: Callable[..., list[Layer]], words: str) -> None:
    one, rows = differing_stack(), rows_of(3)
    with pytest.raises(KernelError, match=words):
        Stack(DIFFERING, layers(*one.layers), ROTARIES)
    embeddings = embeddings_of(one, 3)
    assert embeddings is not None
    for given, got in ((None, "none"), (embeddings[:, :4], r"\(3, 4, 32\)")):
        with pytest.raises(KernelError, match=rf"embeddings have the shape {got}, expected \(3, 5, 32\)"):
            one.run(rows, [Segment.chain(one.new_cache(kv="f16"), 3)], embeddings=given)


def narrow(_: int) -> tuple[Linear, Linear]:
    return pair(96, hidden=32)


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
        Stack(shape, [], Rotary(shape.head_dim, ANGLES))
    with pytest.raises(KernelError, match="The rotary angles are for heads of 64 numbers, not 32"):
        Stack(SHAPE, plain_layers(), Rotary(64, ANGLES))
    for size, reference in product((0, -32), (False, True)):
        with pytest.raises(KernelError, match=f"{name}={size}, .*has a size below 1"):
            Stack(replace(SHAPE, **{name: size}), [], ROTARIES[0], reference=reference)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["score_cap", "residual_scale", "eps"])
def test_scalings_below_0_are_refused(name: str) -> None:
    with pytest.raises(KernelError, match=r"The scalings .* of scores, caps, clips, residuals, gates, norms"):
        replace(SHAPE, **{name: -1.0}).check()  # type: ignore[arg-type]


@needs_kernels
def test_calls_that_do_not_fit_are_refused() -> None:
    both = plain_stack(), plain_stack(reference=True)
    for one, other in (both, both[::-1]):
        cache = filled(one, 5, kv="f32")
        segment = Segment.chain(cache, 3)
        foreign = type(cache)([Heads(2, 32)] * (LAYERS + 1), kv="f32")
        two = [segment, Segment.chain(filled(one, 5, kv="f16"), 3)]
        unseen = replace(segment, seen=segment.seen + np.int32(9))
        of_other = Segment.chain(filled(other, 5, kv="f32"), 3)
        for rows, segments, words in (
            *((rows, [segment], "came for segments of 3 rows of 64") for rows in (rows_of(2), rows_of(3)[0])),
            (rows_of(3, width=96), [segment], "came for segments of 3 rows of 64"),
            (rows_of(0), [], r"Rows of the shape \(0, 64\) came for segments of 0 rows of 64"),
            (rows_of(3), [Segment.chain(foreign, 3)], "A segment's cache belongs to another stack"),
            (rows_of(6), two, "The caches of one forward have different precisions"),
            (rows_of(3), [unseen], "3 rows of a forward see slots that their cache of 8 rows does not hold"),
            (rows_of(3), [of_other], "A cache (in numpy was used with|of the kernels was used without) kernels"),
        ):
            with pytest.raises(KernelError, match=words):
                one.run(rows, segments)
        for layer in (-1, LAYERS + 1):
            with pytest.raises(KernelError, match=f"state of layer {layer} was requested from a stack of 3"):
                one.run(rows_of(3), [segment], [layer])
        assert cache.length == 5


@needs_kernels
def test_no_memory_in_c_is_a_memory_error(monkeypatch: pytest.MonkeyPatch) -> None:
    one = plain_stack()
    cache = filled(one, 5, kv="f32")
    with monkeypatch.context() as patch:
        patch.setattr(stack, "library", lambda: SimpleNamespace(moa_run=lambda *_: -1))
        with pytest.raises(MemoryError, match="There is no memory for a forward"):
            one.run(rows_of(3), [Segment.chain(cache, 3)])
    assert cache.length == 5
