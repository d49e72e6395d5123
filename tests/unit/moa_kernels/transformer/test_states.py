"""Recurrent states: the same bits however their rows are cut, drafted and replayed, where they go, and what is refused."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from moa_kernels import (
    PAGE_ROWS,
    Cache,
    KernelError,
    Layer,
    Linear,
    Rotary,
    Segment,
    Stack,
    StackShape,
    StateShape,
    set_threads,
)
from moa_kernels.library import VARIANT_VARIABLE
from moa_kernels.transformer import stack
from moa_kernels.transformer.reference import ReferenceStack

from tests.unit.moa_kernels.variants_here import HERE, STATE, TREE, delta_net_of, layer_of

SHAPE = StackShape(hidden=64, inner=96, heads=4, kv_heads=2, head_dim=32, eps=1e-5)
ROTARY = Rotary(32, {"rope_type": "default", "rope_theta": 1e4})


def whole(outputs: int, inputs: int, seed: int) -> Linear:
    """A product whose sums are exact in any order: what is computed together in numpy changes no bits."""
    weights = np.random.default_rng(seed).integers(-1, 2, (outputs, inputs)) / 8
    return Linear([weights.astype(np.float32)], reference=True)


def exact_stack(**how: Any) -> Stack:
    """A delta net whose projections are exact, below attention, whose output is not looked at."""
    net = delta_net_of(64, 0, reference=True, **how)
    net = replace(net, gate=whole(256, 64, 1), decay_beta=whole(8, 64, 2))
    layer = layer_of(SHAPE, 0, reference=True, delta_net=net, attention_norm=None, rotary=None)
    layer = replace(layer, qkv=whole(STATE.channels, 64, 3))
    return Stack(SHAPE, [layer, layer_of(SHAPE, 1, reference=True, output_gate=True)], ROTARY, reference=True)


def rows_of(count: int) -> np.ndarray:
    return np.random.default_rng(9).integers(-8, 9, (count, 64)).astype(np.float32)


def state_of(cache: Cache) -> bytes:
    return cache.states.memory.tobytes()


def run(one: Stack, cache: Cache, rows: np.ndarray, segment: Segment | None = None, drafted: int = 0) -> None:
    segment = segment or Segment.chain(cache, len(rows))
    one.run(rows, [replace(segment, drafted=drafted)])
    cache.length += len(rows)


def chain_states(one: Stack, rows: np.ndarray) -> list[bytes]:
    """The state after each row, when they come one by one."""
    cache, found = one.new_cache(kv="f16"), []
    for row in rows:
        run(one, cache, row[None])
        found.append(state_of(cache))
    return found


Build = Callable[..., Stack]


def compiled_stack(**how: Any) -> Stack:
    """Delta nets, one with tiled heads, around gated attention; weights of 8 bits."""
    states = (STATE, None, STATE._replace(tiled=True, heads=6))
    nets = [None if state is None else delta_net_of(64, 1, "floats", state=state, **how) for state in states]
    layers = [layer_of(SHAPE, at, "floats", delta_net=net, output_gate=net is None) for at, net in enumerate(nets)]
    return Stack(SHAPE, layers, ROTARY)


@pytest.fixture(params=["numpy", *HERE])
def build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Build]:
    if request.param == "numpy":
        yield exact_stack
        return
    monkeypatch.setenv(VARIANT_VARIABLE, request.param)
    set_threads(3)
    yield compiled_stack
    set_threads(1)


@pytest.fixture
def one(build: Build) -> Stack:
    return build()


@pytest.mark.parametrize("sizes", [[20], [1, 6, 13], [3, 3, 3, 11]])
@pytest.mark.parametrize("beta_scale", [1.0, 2.0])
def test_states_have_the_same_bits_in_chunks_of_any_size(build: Build, sizes: Sequence[int], beta_scale: float) -> None:
    one, rows, start = build(beta_scale=beta_scale), rows_of(20), 0
    expected, cache = chain_states(one, rows), one.new_cache(kv="f16")
    for size in sizes:
        run(one, cache, rows[start : start + size])
        start += size
        assert state_of(cache) == expected[start - 1]


@pytest.mark.parametrize("path", [[], [0], [0, 1, 3], [0, 2, 5, 6], [7]])
def test_kept_rows_of_a_tree_are_replayed_with_the_bits_of_a_chain(one: Stack, path: list[int]) -> None:
    rows = rows_of(3 + len(TREE) + 2)
    nodes, after = rows[3 : 3 + len(TREE)], rows[-2:]
    expected = chain_states(one, np.concatenate((rows[:3], nodes[path], after)))
    cache = one.new_cache(kv="f16")
    run(one, cache, rows[:2])
    tree = Segment.tree(cache, [-1, *(parent + 1 for parent in TREE)])  # behind one row that is committed
    run(one, cache, rows[2 : 3 + len(TREE)], tree, drafted=len(TREE))
    assert (state_of(cache), cache.states.committed) == (expected[2], 3)
    cache.keep_behind(2, [0, *(node + 1 for node in path)])
    run(one, cache, after[:1])
    assert state_of(cache) == expected[-2]
    run(one, cache, after[1:], drafted=1)  # a draft leaves the state as it is
    assert state_of(cache) == expected[-2]
    run(one, cache, rows[:1], drafted=1)
    assert state_of(cache) == expected[-1]


def test_a_tree_that_grows_has_the_bits_of_one_that_comes_whole(one: Stack) -> None:
    rows, parents = rows_of(4 + len(TREE) + 1), [0, *(parent + 1 for parent in TREE)]
    whole, grown = one.new_cache(kv="f16"), one.new_cache(kv="f16")
    out = {}
    for cache, stops in ((whole, (9,)), (grown, (2, 3, 7, 9))):
        run(one, cache, rows[:3])
        run(one, cache, rows[3:4], drafted=1)  # a chain, on whose end the tree stands
        found, known = [], 1
        for stop in stops:
            segment = Segment.tree(cache, [-1, *parents[1:stop]], known, drafted=stop)
            found.append(one.run(rows[3 + known : 3 + stop], [segment])[0])
            cache.length, known = cache.length + stop - known, stop
        out[cache] = np.concatenate(found)
        assert cache.states.committed == 3
        # The first three nodes of a path, of which two are committed; what follows them stays a draft.
        cache.keep_behind(3, [0, 1, 3])
        last = Segment.chain(cache, 1, drafted=2)
        out[cache] = np.concatenate((out[cache], one.run(rows[-1:], [last])[0]))
    assert out[whole].tobytes() == out[grown].tobytes() or not one.compiled
    assert whole.states.committed == 5
    expected = chain_states(one, rows[[0, 1, 2, 3, 4]])
    assert [state_of(whole), state_of(grown)] == [expected[-1]] * 2


def test_a_cut_goes_to_the_newest_place_that_exists(one: Stack) -> None:
    rows = rows_of(2 * PAGE_ROWS + 9)
    cache, other = one.new_cache(kv="f16"), one.new_cache(kv="f16")
    run(one, cache, rows[:PAGE_ROWS])
    first = cache.snapshot()
    assert cache.snapshot() is first
    run(one, cache, rows[PAGE_ROWS : 2 * PAGE_ROWS])
    second, expected = cache.snapshot(), state_of(cache)
    run(one, cache, rows[2 * PAGE_ROWS :], drafted=4)
    assert cache.states.nbytes == 3 * first.nbytes + 4 * cache.states.draft_nbytes
    with pytest.raises(KernelError, match="no snapshot can be taken at 137"):
        cache.snapshot()
    assert cache.crop(len(rows) - 3) == len(rows) - 3  # drafts are cut anywhere
    assert cache.crop(len(rows) - 5) == 2 * PAGE_ROWS
    assert (state_of(cache), cache.states.committed, cache.length) == (expected, 2 * PAGE_ROWS, 2 * PAGE_ROWS)
    if one.compiled:  # which has pages to share
        other.adopt([cache.full_page(0)], first)
        run(one, other, rows[PAGE_ROWS : 2 * PAGE_ROWS])
        assert (state_of(other), first.holders, other.states.snapshots) == (expected, 2, [first])
        with pytest.raises(KernelError, match="A cache cannot hold 64 rows of another with a snapshot of 128"):
            other.adopt([cache.full_page(0)], second)
        assert other.length == 2 * PAGE_ROWS
        other.release()
        assert (first.holders, other.nbytes) == (1, 0)
    assert cache.crop(2 * PAGE_ROWS - 1) == PAGE_ROWS
    assert (cache.states.snapshots, second.holders) == ([first], 0)
    run(one, cache, rows[PAGE_ROWS : 2 * PAGE_ROWS])
    assert state_of(cache) == expected
    cache.states.forget(first)
    assert cache.crop(2 * PAGE_ROWS - 1) == 0
    run(one, cache, rows[:PAGE_ROWS])
    run(one, cache, rows[PAGE_ROWS : 2 * PAGE_ROWS])
    assert state_of(cache) == expected


def test_a_forward_without_memory_changes_nothing(one: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """In numpy it may end between two layers: then the states are torn, and go back to a snapshot."""
    rows, failing = rows_of(PAGE_ROWS + 6), replace_failing(monkeypatch)
    expected, cache = chain_states(one, rows), one.new_cache(kv="f16")
    run(one, cache, rows[:PAGE_ROWS])
    cache.snapshot()
    run(one, cache, rows[PAGE_ROWS : PAGE_ROWS + 4], drafted=2)
    cache.length -= 1
    with failing, pytest.raises(MemoryError):
        run(one, cache, rows[PAGE_ROWS + 3 :])
    if not one.compiled:
        with pytest.raises(KernelError, match="States are torn by a forward that failed"):
            run(one, cache, rows[PAGE_ROWS + 3 :])
    start = cache.crop(cache.length)
    assert start == (PAGE_ROWS + 3 if one.compiled else PAGE_ROWS)
    run(one, cache, rows[start:])
    assert state_of(cache) == expected[-1]
    with monkeypatch.context() as patch:
        patch.setattr("moa_kernels.transformer.states.np.concatenate", no_memory)
        with pytest.raises(MemoryError):
            run(one, cache, rows, drafted=len(rows))
    run(one, cache, rows[:1], drafted=1)
    assert state_of(cache) == expected[-1]


def no_memory(*_: Any) -> Any:
    raise MemoryError


def replace_failing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A context in which forwards fail, in numpy behind a layer's attention."""

    @contextlib.contextmanager
    def failing() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(ReferenceStack, "_mlp", no_memory)
            patch.setattr(stack, "library", lambda: SimpleNamespace(moa_run=lambda *_: -1))
            yield

    return failing()


def test_rows_that_states_cannot_follow_are_refused(one: Stack) -> None:
    rows, cache = rows_of(6), one.new_cache(kv="f16")
    run(one, cache, rows, drafted=2)
    with pytest.raises(KernelError, match=r"Of 4 rows in the states, \[0, 1, 2, 4\] from 0 on cannot be kept"):
        cache.keep_behind(0, [0, 1, 2, 4])
    for segment in (
        Segment.chain(cache, 2, slot=3),
        Segment.chain(cache, 2, drafted=5),  # three known drafts, and two are there
        Segment.chain(cache, 2, drafted=-1),
        Segment.tree(cache, [-1, -1]),
        Segment.tree(cache, [-1, 0, 0], drafted=1),
        Segment.tree(cache, [-1, 0, -1, 1], known=2, drafted=3),
    ):
        with pytest.raises(KernelError, match="cannot follow the states of 6 rows: committed rows are a chain"):
            one.run(rows[: segment.rows], [segment])
    with pytest.raises(KernelError, match="Two segments of a forward advance the states of one cache"):
        one.run(rows[:2], [Segment.chain(cache, 1), Segment.chain(cache, 1)])
    cache.length = 7
    with pytest.raises(KernelError, match="States have taken in 4 rows, and 2 drafted rows wait: 7 rows do not follow"):
        run(one, cache, rows[:1])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shape": StateShape(4, 3, 32, 64, 4)}, "4 value heads of 64 numbers cannot share 3 keys of 32"),
        ({"shape": StateShape(4, 0, 32, 64, 4)}, "cannot share 0 keys"),
        ({"shape": StateShape(4, 2, 32, 64, 1)}, "A convolution over 1 rows is not computed: 2 to 8 are"),
        ({"norm": np.ones(32, np.float32)}, r"numbers of the shape \(32,\), expected \(64,\)"),
        ({"convolution": np.ones((384, 3), np.float32)}, r"numbers of the shape \(384, 3\), expected \(384, 4\)"),
        ({"gate": whole(128, 64, 0)}, r"gate has the shape \[128, 64\], expected \[256, 64\]"),
        ({"decay_beta": whole(4, 64, 0)}, r"decay_beta has the shape \[4, 64\], expected \[8, 64\]"),
    ],
)
def test_a_delta_net_that_does_not_fit_is_refused(change: dict[str, Any], words: str) -> None:
    one = exact_stack()
    layer: Layer = one.layers[0]
    assert layer.delta_net is not None
    with pytest.raises(KernelError, match=words):
        Stack(SHAPE, [replace(layer, delta_net=replace(layer.delta_net, **change))], ROTARY, reference=True)
    with pytest.raises(KernelError, match="neither an output gate nor"):
        Stack(SHAPE, [replace(layer, output_gate=True)], ROTARY, reference=True)
