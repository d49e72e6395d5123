"""The check at the start: a tree against single tokens to the bit, samples of weights against float32, a step's cost.

A target that fails is not used. A matrix may be packed or read wrongly, and this CPU may compute wrongly: both show in
a few outputs of a few matrices of each format, and in layers of any size, so the time does not grow with the model
(docs/adr/0040-models-are-mapped.md).
"""

import math
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
from moa_kernels import (
    F16,
    F32,
    BesideNorms,
    DeltaNet,
    Experts,
    Layer,
    LayerEmbedding,
    Linear,
    Segment,
    SharedExpert,
    Stack,
    StackShape,
    Tiles,
    in_four_bits,
    quantised,
    tile_count,
)
from moa_kernels.bindings import LANES
from moa_kernels.blocks import rounded
from moa_kernels.transformer.layer import BESIDE_NORMS
from moa_shared.errors import ConfigError
from moa_shared.models.network.network import Network
from moa_shared.models.weights import WeightReader
from moa_shared.programs.machine import ms_since

from moa_server.verifier.target import KVCache, Request, Rows, Target

PARENTS = (-1, 0, 1, -1, 3, 2, 5, 0)  # the chain 0, 1, 2, 5, 6 with branches 3, 4, 7
PATH = (0, 1, 2, 5, 6)
ROWS = (2, 4, 8, 16, 32)  # of the forwards whose times are measured besides a plain step's
SOME_ROWS = 8  # as a draft has; of these a row's time is said


@dataclass(frozen=True, slots=True)
class SelfTest:
    """The times measured. `times`: of forwards with more rows: how many, and milliseconds."""

    step_ms: float
    times: tuple[tuple[int, float], ...]

    @property
    def row_ms(self) -> float:
        return max(0.0, (dict(self.times)[SOME_ROWS] - self.step_ms) / (SOME_ROWS - 1))


def compare_tree(target: Target) -> None:
    """Compares one tree with its path, token by token, and what comes after it."""
    rng, size = np.random.default_rng(0), len(PATH) + 1
    prompt, text, tree = (rng.integers(0, target.vocab_size, size).tolist() for size in (5, size, len(PARENTS)))
    for node, token in zip(PATH, text, strict=False):
        tree[node] = token
    alone, together = target.new_cache(), target.new_cache()
    target.forward(alone, prompt)
    single = [target.forward(alone, [token], want_state_layer=target.layer_count).logits[0] for token in text]
    target.forward(together, prompt)
    output = target.forward(together, tree, PARENTS, want_state_layer=target.layer_count).logits
    together.keep(PATH)
    after = target.forward(together, text[-1:], want_state_layer=target.layer_count).logits
    if not np.isfinite(output[list(PATH)]).all():
        hint = "Fetch the model again; if that does not help, give --execution float32, and report this."
        raise ConfigError("The kernels gave no numbers.", hint=hint)
    rows = (*output[list(PATH)], *after)
    same = all(got.tobytes() == row.tobytes() for got, row in zip(rows, single, strict=True))
    kept, expected = (cache.lsa_input(0, cache.length).tobytes() for cache in (together, alone))
    if not same or kept != expected:
        hint = "Give --execution float32, and report this with the model and the processor."
        raise ConfigError("On this machine the kernels compute a tree differently from its path on its own.", hint=hint)


def measure_times(target: Target) -> SelfTest:
    """The times of forwards by their rows, without what other programs seem to have added to some."""
    target.forward(cache := target.new_cache(), [1])  # which reads mapped weights
    measured = [_timed(target, cache, 1)]
    for rows in ROWS:
        if rows > SOME_ROWS and 2 * measured[-1] > 1000.0:  # forwards that will take longer are left out
            break
        measured.append(_timed(target, cache, rows))
    step_ms, *times = _without_noise((1, *ROWS)[: len(measured)], measured)
    return SelfTest(step_ms, tuple(zip(ROWS, times, strict=False)))


def _without_noise(rows: Sequence[int], measured: Sequence[float]) -> list[float]:
    """Times that rise with the rows, by no less from one to the next than before, and are nowhere above those measured.

    The first rows are nearly free, later ones take all of their arithmetic, and noise only adds. Where one size alone
    met another program, all rows beyond it seemed to be free, and a crowd's forwards were filled with hopeless nodes.
    """
    kept: list[tuple[int, float]] = []
    for here, ms in zip(rows, [*accumulate(reversed(measured), min)][::-1], strict=True):
        while len(kept) > 1 and (kept[-1][1] - kept[-2][1]) * (here - kept[-1][0]) > (ms - kept[-1][1]) * (
            kept[-1][0] - kept[-2][0]
        ):
            kept.pop()
        kept.append((here, ms))
    return [float(ms) for ms in np.interp(rows, [at for at, _ in kept], [ms for _, ms in kept])]


def _timed(target: Target, cache: KVCache, rows: int) -> float:
    """The least time of a forward, since other processes only add to it; processor time where that is less.

    A long forward is interrupted each time: by the clock, its rows would seem too dear for any draft for good.
    """
    tokens = [token % target.vocab_size for token in range(1, 1 + rows)]  # which choose experts of their own
    times: list[float] = []
    while len(times) < 6 and sum(times) < 50.0:
        began, began_cpu = time.perf_counter(), time.process_time()
        target.forward_all([Request(cache, tokens, None, range(rows), drafted=rows)])
        times.append(min(ms_since(began), 1e3 * (time.process_time() - began_cpu)))
        cache.crop(1)
    return min(times)


COMPARED_ROWS = (1, 20)  # which the kernels compute one by one, in blocks, and on AMX in tiles
SMALL = 512  # hidden size and MLP width of small layers, at most
WINDOW = 7  # of theirs, where they have one
# Mean error over mean size. Products of the same 8-bit activations differ by the order of float32 sums: 3e-7.
MOST_PRODUCT_ERROR = 1e-3
# 8-bit activations and weights cost 0.5 to 3 % in a layer; a wrong layout or sign costs more than half.
MOST_LAYER_ERROR = 0.15


def compare_with_float32(network: Network, weights: WeightReader) -> float:
    """Compares the first and the last matrix of each place in a layer and each format, and each kind of layer.

    Returns the largest error of a layer, over the size of what was compared.
    """
    places: dict[tuple[str, str], list[str]] = {}
    for name, each in weights.tiles.items():
        places.setdefault((each.kind, re.sub(r"\d+", "", name)), []).append(name)
    for name in dict.fromkeys(name for names in places.values() for name in (names[0], names[-1])):
        _check(name.removesuffix(".weight"), _product_error(weights, name), MOST_PRODUCT_ERROR)
    errors = {f"layer {index}": _layer_error(network, index) for index in network.different_layers()}
    for place, error in errors.items():
        _check(place, error, MOST_LAYER_ERROR)
    return max(errors.values())


def _check(place: str, error: float, most: float) -> None:
    if not error <= most:  # NaN is not
        raise ConfigError(
            f"The kernels' {place} is {error:.1%} away from float32 on this machine, more than {most:.1%}.",
            hint="Delete the folder tiles in the cache and start again, or fetch the model again; if that does not "
            "help, give --execution float32, and report this with the model and the processor.",
        )


def _product_error(weights: WeightReader, name: str) -> float:
    """Of three tiles of a matrix: the first, the last and one between them."""
    rng, tiles = np.random.default_rng(1), weights.tiles[name]
    count = tile_count(tiles.outputs)
    size = tiles.memory.nbytes // count
    numbers = sorted({0, int(rng.integers(count)), count - 1})
    outputs = [range(at * LANES, min((at + 1) * LANES, tiles.outputs)) for at in numbers]
    parts = [
        Tiles(tiles.kind, len(own), tiles.inputs, tiles.memory[at * size : (at + 1) * size])
        for at, own in zip(numbers, outputs, strict=True)
    ]
    product = Linear(parts)
    expected = weights.rows(name, np.concatenate([np.asarray(own) for own in outputs]))
    if weights.format_of(name) != tiles.kind:
        expected = (in_four_bits(expected) if tiles.kind == "q4_1" else quantised(expected)).dequantised()
    rows = rng.standard_normal((max(COMPARED_ROWS), tiles.inputs), np.float32)
    exact = np.einsum("ri,oi->ro", rounded(rows), expected)  # without BLAS, whose threads wait for busy cores
    return max(_error(product(rows[:some]), exact[:some]) for some in COMPARED_ROWS)


def _layer_error(network: Network, index: int) -> float:
    """Of a small layer with random weights, of the same kind as that layer of the network."""
    rng, like, whole = np.random.default_rng(2), network.stack.layers[index], network.stack.shape
    shape, all_heads, reads_others = _small(whole, like), like.norms_all_heads(whole), like.reads_layer is not None
    net = None if like.delta_net is None else _small_delta_net(like.delta_net, rng)
    like = replace(like, window=min(like.window, WINDOW), heads=None, inner=None, reads_layer=None, delta_net=net)
    matrices = {name: size for name, (_, *size) in like.matrices(shape).items() if name != "router"}
    matrices |= {"gate_up": [2 * shape.inner, shape.hidden], "down": [shape.hidden, shape.inner]}  # of an expert too
    weights = {name: rng.standard_normal(size, np.float32) / size[1] ** 0.5 for name, size in matrices.items()}
    biases = {name: rng.standard_normal(len(each), np.float32) for name, each in weights.items()}
    vectors = like.vectors(shape, all_heads=all_heads)
    norms: dict[str, Any] = {name: _random_norm(rng, width) for name, norm, width in vectors if norm is not None}
    embedding_norm = norms.pop("embedding_norm", None)
    if like.beside is not None:
        norms["beside"] = BesideNorms(*(norms.pop(f"{name} norm") for name in BESIDE_NORMS))
    if reads_others:  # of one layer: it has keys and values of its own here
        norms |= {"key_norm": _random_norm(rng, shape.head_dim), "value_norm": np.ones(shape.head_dim, np.float32)}
    embeddings = rng.standard_normal((max(COMPARED_ROWS), 1, shape.embedding), np.float32) if shape.embedding else None
    router = rng.standard_normal((8, shape.hidden), np.float32)  # at most; to no result it matters which a row has
    gate = rng.standard_normal(shape.hidden, np.float32) / np.float32(shape.hidden**0.5)  # of a shared expert
    rows = rng.standard_normal((max(COMPARED_ROWS), shape.hidden), np.float32)

    def added(*, reference: bool) -> Rows:
        changes: dict[str, Any] = {
            name: Linear([weights[name]], biases[name], plain=name == "decay_beta", reference=reference)
            for name in weights
        }
        if net is not None:
            changes["delta_net"] = replace(net, gate=changes.pop("gate"), decay_beta=changes.pop("decay_beta"))
        if shape.embedding:
            products = changes.pop("embedding_gate"), changes.pop("embedding_out")
            changes["embedding"] = LayerEmbedding(*products, embedding_norm)
        if like.experts is not None:
            scores = Linear([router[: like.experts.count]], plain=True, reference=reference)
            pair = changes["gate_up"], changes["down"]
            chosen = min(like.experts.chosen, scores.outputs)
            scales = None if like.experts.scales is None else like.experts.scales[: scores.outputs]
            weighs_all = like.experts.weighs_all
            shared = None if like.experts.shared is None else SharedExpert(*pair, gate)
            how: dict[str, Any] = {"weighs_all": weighs_all, "scales": scales, "shared": shared}
            changes["experts"] = Experts(scores, chosen, lambda number: pair, **how)
            if like.beside is None:
                changes |= {"gate_up": None, "down": None}
        layer = replace(like, **changes, **norms)
        stack = Stack(shape, [layer], network.stack.rotaries, reference=reference)
        segment = Segment.chain(stack.new_cache(kv=F32 if reference else F16), len(rows))
        out, _ = stack.run(rows, [segment], embeddings=embeddings)
        return out - rows * np.float32(like.out_scale)

    return _error(added(reference=False), added(reference=True))


def _random_norm(rng: np.random.Generator, width: int) -> Rows:
    return rng.uniform(0.5, 1.5, width).astype(np.float32)


def _small_delta_net(net: DeltaNet, rng: np.random.Generator) -> DeltaNet:
    """Of a few heads, with random numbers; its products are still those of `net`."""
    keys = min(net.shape.key_heads, 2)
    shape = net.shape._replace(heads=keys * (net.shape.heads // net.shape.key_heads), key_heads=keys)
    return replace(
        net,
        shape=shape,
        convolution=rng.standard_normal((shape.channels, shape.taps), np.float32),
        decay_rate=rng.uniform(0.1, 2.0, shape.heads).astype(np.float32),
        time_bias=rng.standard_normal(shape.heads, np.float32),
        norm=_random_norm(rng, shape.value_dim),
    )


def _small(shape: StackShape, like: Layer) -> StackShape:
    count, dim = like.heads_in(shape)
    kv_heads = min(count, 2)
    return replace(
        shape,
        hidden=min(shape.hidden, SMALL),
        inner=min(like.inner_in(shape), SMALL),
        heads=kv_heads * (shape.heads // count),
        kv_heads=kv_heads,
        head_dim=dim,
    )


def _error(got: Rows, expected: Rows) -> float:
    difference, size = float(np.abs(got - expected).mean()), float(np.abs(expected).mean())
    if not size:  # of zeros, which a matrix may hold
        return math.inf if difference else 0.0
    return difference / size
