"""Layers that differ in heads and widths, read others' keys and values or embeddings, or add these: against numpy, and
exact.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from moa_kernels import (
    KV_FORMATS,
    BesideNorms,
    Experts,
    Heads,
    KernelError,
    Layer,
    LayerEmbedding,
    Linear,
    Rotary,
    Segment,
    Stack,
    StackShape,
    variant_name,
)
from moa_kernels.blocks import Rows

from tests.unit.moa_kernels.variants_here import TREE, check_bits

SHAPE = StackShape(64, 96, 4, 2, 32, 1e-5, activation="gelu_tanh", score_scale=0.3, embedding=32)
NARROW, WIDE = Heads(2, 32), Heads(1, 96)
EXPERTS, CHOSEN = 7, 3

pytestmark = pytest.mark.skipif(variant_name() == "numpy", reason="there are no kernels for this CPU")


def floats(random: np.random.Generator, *size: int) -> Rows:
    values: Rows = (random.standard_normal(size) / size[-1] ** 0.5).astype(np.float32)
    return values


def layer(number: int, heads: Heads, *, plain: bool, reference: bool, **changes: Any) -> Layer:
    random = np.random.default_rng(number)
    hidden, inner, queries = SHAPE.hidden, changes.get("inner") or SHAPE.inner, SHAPE.heads * heads.dim
    keys = heads.number * heads.dim
    own = 0 if "reads_layer" in changes else keys if changes.get("keys_are_values") else 2 * keys
    read = hidden + (SHAPE.embedding if changes.pop("reads_embedding", False) else 0)

    def linear(outputs: int, inputs: int) -> Linear:
        return Linear([floats(random, outputs, inputs)], plain=plain, reference=reference)

    def norm(width: int) -> Rows:
        return random.uniform(0.5, 1.5, width).astype(np.float32)

    made = Layer(
        norm(hidden), linear(queries + own, read), linear(hidden, queries), norm(hidden),
        linear(2 * inner, hidden), linear(hidden, inner), norm(heads.dim), norm(heads.dim), norm(hidden), norm(hidden),
        rotary=0 if heads == NARROW else 1, heads=heads, value_norm=np.ones(heads.dim, np.float32), out_scale=0.7,
        embedding=LayerEmbedding(linear(32, hidden), linear(hidden, 32), norm(hidden)),
    )  # fmt: skip
    if read > hidden:
        changes["attention_embedding_norm"] = norm(SHAPE.embedding)
    if changes.pop("beside", False):
        router = Linear([4 * floats(random, EXPERTS, hidden)], plain=True, reference=reference)
        pairs = [(linear(64, hidden), linear(hidden, 32)) for _ in range(EXPERTS)]
        experts = Experts(router, CHOSEN, lambda number: pairs[number], scales=norm(EXPERTS))
        changes |= {"experts": experts, "beside": BesideNorms(*(norm(hidden) for _ in range(4)))}
    return replace(made, **changes)


def stack(*, plain: bool = False, reference: bool = False) -> Stack:
    how = {"plain": plain, "reference": reference}
    layers = [
        layer(0, NARROW, window=5, **how),
        layer(1, WIDE, keys_are_values=True, reads_embedding=True, **how),
        layer(2, NARROW, window=5, beside=True, **how),
        layer(3, WIDE, inner=160, reads_layer=1, **how),
        layer(4, NARROW, inner=160, reads_layer=2, window=5, reads_embedding=True, attention_norm=None, **how),
    ]
    plain_angles = {"rope_type": "default", "rope_theta": 1e4}
    angles = {"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.25}
    return Stack(SHAPE, layers, [Rotary(32, plain_angles), Rotary(96, angles)], reference=reference)


def states(rows: int, seed: int = 1) -> tuple[Rows, Rows]:
    random = np.random.default_rng(seed)
    embeddings = random.standard_normal((rows, 5, SHAPE.embedding)).astype(np.float32)
    return random.standard_normal((rows, SHAPE.hidden)).astype(np.float32), embeddings


def run(one: Stack, rows: Rows, embeddings: Rows, segments: list[Segment]) -> Rows:
    out, _ = one.run(rows, segments, embeddings=embeddings)
    for segment in segments:
        segment.cache.length += segment.rows
    return out


@pytest.mark.usefixtures("variant")
def test_they_compute_what_numpy_computes() -> None:
    outputs = []
    for one in (stack(plain=True), stack(reference=True)):
        cache = one.new_cache(kv="f32")
        assert cache.heads == (NARROW, WIDE, NARROW)
        chain = run(one, *states(70), [Segment.chain(cache, 70)])
        tree = run(one, *states(len(TREE), 2), [Segment.tree(cache, TREE)])
        outputs.append((chain, tree, cache.read(0, 70)))
    for ours, theirs in zip(*outputs, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-4)


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize("kv", KV_FORMATS)
def test_a_row_has_the_same_bits_alone_and_among_others(kv: str) -> None:
    one = stack()
    check_bits(one, lambda: one.new_cache(kv=kv), *states(78))


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        (lambda first, second, *_: [first, second, reading(1)], "Layer 2 reads .* of layer 1, whose heads differ"),
        (lambda _, second, *__: [reading(1), second], "Layer 0 reads .* of layer 1, which has none for it"),
        (lambda first, _, third, *__: [first, replace(third, beside=None)], "beside an MLP needs the norms of both"),
        (
            lambda first, second, *_: [replace(second, value_norm=first.value_norm)],
            r"value_norm has the shape \(32,\), expected \(96,\)",
        ),
        (
            lambda _, second, *__: [replace(second, attention_embedding_norm=None)],
            r"qkv has the shape \[480, 96\], expected \[480, 64\]",
        ),
    ],
)
def test_layers_that_do_not_fit_are_refused(layers: Callable[..., list[Layer]], words: str) -> None:
    one = stack()
    with pytest.raises(KernelError, match=words):
        Stack(SHAPE, layers(*one.layers), one.rotaries)


def reading(source: int) -> Layer:
    return layer(3, NARROW, plain=False, reference=False, reads_layer=source)


@pytest.mark.parametrize(("count", "got"), [(None, "none"), (4, "(3, 4, 32)")])
def test_embeddings_that_do_not_fit_are_refused(count: int | None, got: str) -> None:
    one, (rows, embeddings) = stack(), states(3)
    words = re.escape(f"The layers' embeddings have the shape {got}, expected (3, 5, 32).")
    given = None if count is None else embeddings[:, :count]
    with pytest.raises(KernelError, match=words):
        one.run(rows, [Segment.chain(one.new_cache(kv="f16"), 3)], embeddings=given)
