"""Each family as transformers computes it; headers and configurations that make no sense are refused or computed."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from moa_kernels import KernelError, Linear, Segment, Stack, norm
from moa_kernels.library import library
from moa_server.verifier.kernel_target import KernelTarget
from moa_shared.errors import ModelSourceError
from moa_shared.models.gguf_configuration import make_config
from moa_shared.models.network.families import FAMILIES
from moa_shared.models.network.network import LayerEmbeddings, Network, read_layer
from moa_shared.models.network.plan import plan_of
from moa_shared.models.network.served import check_family
from moa_shared.models.storage.gguf_header import GgufHeader, read_header

from tests.support.families import (
    DENSE_FAMILIES,
    GGUF_FAMILIES,
    HYBRID_MIXTURES,
    MIXTURE,
    MIXTURES,
    tiny_dense,
    tiny_in_gguf,
    tiny_mixture,
    weights_of,
)
from tests.support.family_gguf import write_family_gguf
from tests.support.tiny_models import SIZES, Floats
from tests.support.torch_models import bare

pytestmark = pytest.mark.torch

TEXT = [(31 * place + 7) % SIZES["vocab_size"] for place in range(50)]
PACKED = ("q_proj", "k_proj", "v_proj", "up_proj")
EVERY = [*DENSE_FAMILIES, *(f"{MIXTURE}{family}" for family in MIXTURES)]
needs_kernels = pytest.mark.skipif(library() is None, reason="there are no kernels for this CPU")


def tiny(family: str) -> Any:
    return tiny_mixture(family.removeprefix(MIXTURE)) if family.startswith(MIXTURE) else tiny_dense(family)


def text_of(config: Mapping[str, Any]) -> list[int]:
    """Of hybrids so long that transformers computes several chunks of states."""
    return TEXT * 3 if "linear_attention" in (config.get("layer_types") or ()) else TEXT


def of_transformers(model: Any) -> Floats:
    return bare(model, text_of(model.config.to_dict()))


def target_of(family: str, *, plain: bool = False, packed: tuple[str, ...] = ()) -> KernelTarget:
    model = tiny(family)
    network = Network(weights_of(model, packed), model.config.to_dict(), plain=plain)
    return KernelTarget(network, model.config.max_position_embeddings, kv="f32" if plain else "f16")


def test_every_family_is_tested() -> None:
    tested = {tiny(family).config.model_type for family in EVERY}
    assert tested | {"llama", "qwen2", "qwen3"} == FAMILIES.keys()


@needs_kernels
@pytest.mark.parametrize("family", EVERY)
def test_the_kernels_in_float32_compute_what_transformers_does(family: str) -> None:
    model = tiny(family)
    check_family(model.config.to_dict(), family)
    target = target_of(family, plain=True)
    got = target.forward(target.new_cache(), text_of(model.config.to_dict())).logits
    np.testing.assert_allclose(got, of_transformers(model), rtol=0, atol=3e-4)


@pytest.mark.parametrize("family", EVERY)
def test_numpy_computes_what_transformers_does(family: str) -> None:
    model, weights = tiny(family), weights_of(tiny(family))
    text = text_of(model.config.to_dict())
    plan, linear = plan_of(model.config.to_dict()), partial(Linear, reference=True)
    layers = [
        read_layer(weights, f"model.layers.{index}", linear, family=plan.family, plan=each)
        for index, each in enumerate(plan.layers)
    ]
    stack = Stack(plan.shape, layers, plan.rotaries, reference=True)
    rows = weights.rows("model.embed_tokens.weight", text) * np.float32(plan.embedding_scale)
    width, embeddings = plan.shape.embedding, None
    if width:
        embeddings = LayerEmbeddings(weights, linear, len(layers), width, plan.shape.eps)(text, rows)
    out, _ = stack.run(rows, [Segment.chain(stack.new_cache(kv="f32"), len(text))], embeddings=embeddings)
    final = weights.array("model.norm.weight") + np.float32(plan.family.norm_offset)
    logits = norm(out, final, plan.shape.eps) @ weights.array("lm_head.weight").T * np.float32(plan.logits_scale)
    if plan.logits_cap:
        logits = plan.logits_cap * np.tanh(logits / plan.logits_cap)
    np.testing.assert_allclose(logits, of_transformers(model), rtol=0, atol=3e-4)


@needs_kernels
@pytest.mark.parametrize("family", EVERY)
def test_with_8_bit_weights_it_stays_close(family: str) -> None:
    """As a whole: a row whose router was nearly undecided may have other experts, and is another then.

    In states what 8 bits change adds up.
    """
    target, model = target_of(family), tiny(family)
    got, expected = target.forward(target.new_cache(), text_of(model.config.to_dict())).logits, of_transformers(model)
    cosines = (got * expected).sum(-1) / np.linalg.norm(got, axis=-1) / np.linalg.norm(expected, axis=-1)
    is_hybrid = bool(target.network.stack.states)
    assert (np.median(cosines) if is_hybrid or family.startswith(MIXTURE) else cosines.min()) > (
        0.98 if is_hybrid else 0.99
    )


@needs_kernels
@pytest.mark.parametrize("family", EVERY)
def test_a_tree_in_a_long_text_has_the_bits_of_its_paths(family: str) -> None:
    target = target_of(family, packed=PACKED)
    parents = [-1, -1, 0, 0, 1, 2, 2, 5, 7, 8, 9, 10]  # deeper than a window
    for length in (1, 3, 40):
        together = target.new_cache()
        target.forward(together, TEXT[:length])
        tree = target.forward(together, TEXT[: len(parents)], parents).logits
        for path in ([1, 4], [0, 3], [0, 2, 6], [0, 2, 5, 7, 8, 9, 10, 11]):
            alone = target.new_cache()
            for token in TEXT[:length]:
                target.forward(alone, [token])
            for node in path:
                single = target.forward(alone, [TEXT[node]]).logits[0]
                assert single.tobytes() == tree[node].tobytes()


ODD: tuple[Any, ...] = (
    0, 1, -1, 2, 3, 7, 255, 2**31, 2**64, 0.0, -0.0, 1.5, -2.5, 1e-45, 1e38, 1e300, float("inf"), float("nan"), "", "x",
    "yarn", "linear", "longrope", "llama3", "none", True, False, None, [], [0], [1, 0, 1], ["sliding_attention"] * 3,
    ["x"], [float("nan")] * 16, [0.0] * 16, {}, {"factor": 0}, {"full_attention": {}}, {"rope_type": []},
)  # fmt: skip
MIXTURES_IN_GGUF = tuple(MIXTURE + family for family in ("qwen 3", "mixtral", "olmoe", "gpt-oss", *HYBRID_MIXTURES))
few_and_many = pytest.mark.parametrize("count", [150, pytest.param(1300, marks=pytest.mark.long)])


def plan_if_accepted(config: Mapping[str, Any]) -> None:
    with suppress(KernelError):  # which the network says as a ModelSourceError
        plan_of(config)


def in_file(family: str, path: Path) -> Path:
    """The family's tiny model in GGUF."""
    return write_family_gguf(tiny_in_gguf(family), path)


def mutated(values: Mapping[str, Any], random: Random) -> dict[str, Any]:
    changed = dict(values)
    for key in random.sample(sorted(changed), min(random.choice((1, 1, 2)), len(changed))):
        inner = changed[key]
        if isinstance(inner, Mapping) and inner and random.random() < 0.7:
            changed[key] = mutated(inner, random)
        else:
            changed[key] = random.choice(ODD)
    return changed


@few_and_many
@pytest.mark.parametrize("family", EVERY)
def test_configurations(family: str, count: int) -> None:
    config, random = tiny(family).config.to_dict(), Random(family)
    refused = 0
    for _ in range(count):
        try:
            changed = mutated(config, random)
            check_family(changed, "it")
        except ModelSourceError:
            refused += 1
            continue
        try:
            plan_if_accepted(changed)
        except Exception as error:
            wrong = {key: value for key, value in changed.items() if value is not config[key]}
            raise AssertionError(f"{wrong}: {error!r}") from error
    assert refused > count // 20


@few_and_many
@pytest.mark.parametrize("family", [*GGUF_FAMILIES, *MIXTURES_IN_GGUF])
def test_headers(family: str, tmp_path: Path, count: int) -> None:
    header, random = read_header(in_file(family, tmp_path / "tiny.gguf")), Random(family)
    architecture = f"{header.architecture}."
    keys = {key: value for key, value in header.metadata.items() if not key.startswith("general.")}
    arrays = {key for key, value in keys.items() if isinstance(value, list)}
    own = {key: value for key, value in keys.items() if key.startswith(architecture) or key not in arrays}
    refused = 0
    for _ in range(count):
        changed = replace(header, metadata={**header.metadata, **in_gguf(mutated(own, random))})
        if random.random() < 0.3:
            changed = with_other_tensors(changed, random)
        try:
            config = make_config(changed)
        except ModelSourceError:
            refused += 1
            continue
        plan_if_accepted(config)
    assert refused > count // 8


def in_gguf(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those values that a header can hold."""
    return {key: value for key, value in values.items() if value is not None and not isinstance(value, dict)}


def with_other_tensors(header: GgufHeader, random: Random) -> GgufHeader:
    """One tensor lacks, has another name, or another shape."""
    tensors = dict(header.tensors)
    name = random.choice(sorted(tensors))
    entry = tensors.pop(name)
    if random.random() < 0.4:
        tensors[random.choice((name + "x", "blk.9." + name, "blk.0.attn_q.bias"))] = entry
    elif random.random() < 0.5:
        tensors[name] = replace(entry, shape=random.choice(((1,), (0, 0), entry.shape[::-1], (*entry.shape, 1))))
    return replace(header, tensors=tensors)
