"""The variants that this CPU runs, random weights for them, and that rows have the same bits in any call."""

import os
import platform
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from moa_kernels import (
    FORMATS,
    PLAIN,
    Cache,
    DeltaNet,
    Layer,
    Linear,
    QuantisedMatrix,
    Segment,
    Stack,
    StackShape,
    StateShape,
)
from moa_kernels.library import FOLDER_VARIABLE, present, probe
from moa_kernels.transformer.reference import ReferenceCache
from moa_kernels.variants import LIBRARIES, variants_of

FOLDER = Path(os.environ.get(FOLDER_VARIABLE) or LIBRARIES)
HERE = [
    variant.name
    for variant in variants_of(platform.machine())
    if variant.name in present(FOLDER) and probe(FOLDER) & variant.bit
]


def random_matrix(random: np.random.Generator, kind: str, outputs: int, inputs: int) -> QuantisedMatrix:
    """Any codes, with scales of either sign."""
    stored = FORMATS[kind]
    raw = random.integers(0, 256, (outputs, inputs // stored.values, stored.size), np.uint8)
    for at in stored.halves:
        scales = random.uniform(-0.02, 0.02, (*raw.shape[:2], 1)).astype(np.float16)
        raw[..., at : at + 2] = scales.view(np.uint8)
    if stored.exponent is not None:
        raw[..., stored.exponent] = random.integers(0, 130, raw.shape[:2])
    return QuantisedMatrix(kind, raw)


def floats(random: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    values: np.ndarray = random.normal(size=shape) * scale / shape[-1] ** 0.5
    return values.astype(np.float32)


def norm_of(random: np.random.Generator, width: int) -> np.ndarray:
    return random.uniform(0.5, 1.5, width).astype(np.float32)


def linear_of(
    random: np.random.Generator, outputs: int, inputs: int, kind: str = PLAIN, *, reference: bool = False,
    bias: bool = False,
) -> Linear:  # fmt: skip
    """Random weights of a format, in float32, or as 8-bit codes of them ("floats")."""
    matrix = random_matrix(random, kind, outputs, inputs) if kind in FORMATS else floats(random, outputs, inputs)
    return Linear([matrix], floats(random, outputs) if bias else None, plain=kind == PLAIN, reference=reference)


def layer_of(shape: StackShape, seed: int, kind: str = PLAIN, *, reference: bool = False, **changes: Any) -> Layer:
    """Random weights; `changes`: fields of the layer, which tell the width of `qkv`."""
    random = np.random.default_rng(seed)
    norms = [norm_of(random, shape.hidden) for _ in range(2)]
    bare = Layer(norms[0], qkv=None, out=None, mlp_norm=norms[1], gate_up=None, down=None)  # type: ignore[arg-type]
    layer = replace(bare, **changes)
    dim, inner = layer.heads_in(shape).dim, layer.inner_in(shape)
    queries, keys = shape.heads * dim, layer.heads_in(shape).number * dim
    own = 0 if shape.reads_memory or layer.reads_layer is not None else keys * (1 if layer.keys_are_values else 2)
    read = shape.hidden + (0 if layer.attention_embedding_norm is None else shape.embedding)
    gates = queries if layer.output_gate else 0
    sizes = {"qkv": (queries + gates + own, read), "out": (shape.hidden, queries)}
    if layer.delta_net is not None:
        state = layer.delta_net.shape
        sizes = {"qkv": (state.channels, read), "out": (shape.hidden, state.heads * state.value_dim)}
    if layer.experts is None or layer.beside is not None:
        sizes |= {"gate_up": (2 * inner, shape.hidden), "down": (shape.hidden, inner)}
    made: dict[str, Any] = {
        name: linear_of(random, *size, kind, reference=reference, bias=name == "qkv") for name, size in sizes.items()
    }
    return replace(layer, **made)


STATE = StateShape(heads=4, key_heads=2, key_dim=32, value_dim=64, taps=4)


def delta_net_of(
    hidden: int, seed: int, kind: str = PLAIN, *, state: StateShape = STATE, reference: bool = False, **how: Any
) -> DeltaNet:
    random = np.random.default_rng([seed, 2])
    width = state.heads * state.value_dim
    return DeltaNet(
        state,
        gate=linear_of(random, width, hidden, kind, reference=reference),
        decay_beta=linear_of(random, 2 * state.heads, hidden, reference=reference),
        convolution=floats(random, state.channels, state.taps),
        decay_rate=random.uniform(0.1, 2.0, state.heads).astype(np.float32),
        time_bias=floats(random, state.heads),
        norm=norm_of(random, state.value_dim),
        eps=1e-5,
        **how,
    )


def matrices_of(cache: Cache, layer: int) -> np.ndarray:
    """[heads, key_dim, value_dim] of a layer, a view of those of numpy, or of the kernels, whose values lie in blocks."""
    matrices, shape = cache.states.matrices(layer), cache.states.shapes[layer]
    if isinstance(cache, ReferenceCache):
        return matrices
    blocks = matrices.reshape(shape.heads, shape.value_dim // 32, shape.key_dim, 32)
    return np.moveaxis(blocks, 1, 2)


def fill_states(cache: Cache, rows: int, seed: int) -> None:
    """With random numbers, as if `rows` rows were in them."""
    states, random = cache.states, np.random.default_rng(seed)
    states.prepare(0, 0, 0, np.zeros(0, np.int32))
    for layer, shape in enumerate(states.shapes):
        numbers = floats(random, shape.heads, shape.key_dim, shape.value_dim)
        blocks = matrices_of(cache, layer)
        blocks[...] = numbers.reshape(blocks.shape)
        states.inputs(layer)[...] = random.normal(size=states.inputs(layer).shape)
    states.end(rows)


def rounded(rows: np.ndarray) -> np.ndarray:
    """[rows, inputs] as the kernels see activations: int8 with a scale for each 32 of them; in float64."""
    groups = rows.reshape(len(rows), -1, 32)
    largest = np.maximum(np.abs(groups).max(-1, keepdims=True), np.float32(1e-12))
    codes = np.rint(groups * (np.float32(127) / largest))
    scales = (largest / np.float32(127)).astype(np.float64)
    values: np.ndarray = (codes.astype(np.float64) * scales).reshape(rows.shape)
    return values


TREE = [-1, 0, 0, 1, 1, 2, 5, -1]


def check_bits(one: Stack, fresh: Callable[[], Cache], rows: np.ndarray, embeddings: np.ndarray | None = None) -> None:
    """Rows of a tree and of a chain in one call have the bits that they have alone, or in other parts."""
    nodes, caches = len(TREE), [fresh(), fresh()]
    segments = [Segment.tree(caches[0], TREE, drafted=nodes), Segment.chain(caches[1], len(rows) - nodes)]
    together, _ = one.run(rows, segments, embeddings=embeddings)
    caches[1].length += len(rows) - nodes
    paths = [[node] for node in range(nodes)]
    for path in paths:
        while TREE[path[0]] >= 0:
            path.insert(0, TREE[path[0]])
    parts = [[(node, node + 1) for node in path] for path in paths]
    for spans in (*parts, [(nodes, nodes + 1), (nodes + 1, nodes + 7), (nodes + 7, len(rows))]):
        cache = fresh()
        for start, stop in spans:
            own = None if embeddings is None else embeddings[start:stop]
            out, _ = one.run(rows[start:stop], [Segment.chain(cache, stop - start)], embeddings=own)
            cache.length += stop - start
            assert out.tobytes() == together[start:stop].tobytes()
    assert cache.read(0, cache.length).tobytes() == caches[1].read(0, cache.length).tobytes()
    assert cache.states.memory.tobytes() == caches[1].states.memory.tobytes()
