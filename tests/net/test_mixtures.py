"""Mixtures of experts in the running system: the text is the target's own, whatever drafts, over the kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
from moa.v1 import moa_pb2 as pb
from moa_client.device.loading import Device, Drafting
from moa_client.drafting.drafters import MoaDrafter
from moa_kernels.library import library
from moa_server.engine.stepper import Stepper
from moa_server.loading import memory_source
from moa_server.verifier.kernel_target import KernelTarget
from moa_shared.drafter import ArrayWeights, DrafterConfig, fresh_tensors
from moa_shared.drafter.checkpoint.checkpoint import Checkpoint
from moa_shared.drafting import GrowthShape, draft_chain
from moa_shared.models.network.network import Network

from tests.net.drafted_texts import check_texts
from tests.net.server_peer import CONTEXT, IDENTITY, VOCAB, make_host
from tests.support.dense_families import tiny_dense
from tests.support.mixtures import tiny_mixture, weights_of

SHARING = "gemma 4 with embeddings by layer"  # no mixture, but it differs from other families as much
pytestmark = [pytest.mark.torch, pytest.mark.skipif(library() is None, reason="there are no kernels for this CPU")]


def drafter_of(kind: str, target: KernelTarget) -> Checkpoint:
    """A random drafter of the target."""
    shape = target.network.stack.shape
    config = DrafterConfig(
        vocab_size=VOCAB, hidden_size=shape.hidden, target_layers=target.layer_count, target_heads=shape.heads,
        target_kv_heads=shape.kv_heads, target_head_dim=shape.head_dim, sa_kv_heads=2, sa_mlp=96, ca_kv_heads=2,
        ca_mlp=96, lsa_heads=4, lsa_kv_heads=2, lsa_mlp=96, target_kv_width=target.new_cache().pages.width,
    )  # fmt: skip
    if kind != "moa":
        config = replace(config, kind=kind, own_layers=1)
    return Checkpoint(config, fresh_tensors(config, seed=2), "64" * 32)


@pytest.mark.parametrize("kind", ["moa", "eagle2"])
@pytest.mark.parametrize("family", ["qwen 3", "gpt-oss", "gemma 4", SHARING])
@pytest.mark.parametrize("rounds", [True, False], ids=["rounds", "streamed"])
async def test_the_text_is_the_targets_own(family: str, kind: str, rounds: bool) -> None:
    make = tiny_dense if family == SHARING else tiny_mixture
    model = make(family, max_position_embeddings=CONTEXT)
    weights = weights_of(model)
    target = KernelTarget(Network(weights, model.config.to_dict()), CONTEXT)
    made = drafter_of(kind, target)
    source = memory_source(made, target)
    assert source is not None
    states = made.states(ArrayWeights(weights.tensors), "int8")
    drafter = MoaDrafter(
        states,
        lambda state, sampling: draft_chain(state, 4, sampling),
        reads_memory=True,
        shape=GrowthShape(breadth=3, survival=0.0),
    )
    identity = pb.Identity()
    identity.CopyFrom(IDENTITY)
    identity.drafter_fingerprint = source.fingerprint
    device = Device(cast(Any, None), cast(Any, None), identity, Drafting(drafter, made.config.memory_width))
    host = make_host(target, stepper=Stepper(target, [source]))
    await check_texts(host, device, target, rounds=rounds)
