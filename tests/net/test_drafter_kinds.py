"""Drafters of all kinds and targets of other families: real client and server, and the target's own text, whatever drafts."""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from moa_client.device.loading import Drafting
from moa_client.drafting.drafters import MoaDrafter
from moa_client.drafting.settings import DraftingSettings
from moa_client.engine.engine import ClientEngine
from moa_client.link.fleet import connect
from moa_client.link.server import Server
from moa_kernels.library import library
from moa_server.engine.stepper import Stepper
from moa_server.loading import memory_source
from moa_server.verifier.kernel_target import KernelTarget
from moa_shared.drafter.checkpoint import Checkpoint, fresh_tensors
from moa_shared.drafter.kinds import DrafterConfig
from moa_shared.drafter.kinds.weights import ArrayWeights
from moa_shared.drafting.growing import GrowthShape
from moa_shared.models.network.network import Network
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import Plane
from moa_shared.sampling.settings import Sampling

from tests.net.client_device import checkpoint, without_drafter
from tests.net.server_peer import CONTEXT, MODEL, VOCAB, make_host, plain_text, serving
from tests.net.test_client_engine import PROMPT, ask

SHARING = "gemma 4 with embeddings by layer"  # no mixture, but it differs from other families as much


async def check_texts(target: KernelTarget, made: Checkpoint, weights: Any, level: Any, *, rounds: bool) -> None:
    """Asks greedily and sampled, and compares with what the target writes by itself."""
    source = memory_source(made, target)
    host = make_host(target, stepper=Stepper(target, [source] if source else []))
    width, rows_seen = made.config.memory_width, list[int]()

    class Watched(MoaDrafter):
        def remember(self, start: int, rows: npt.NDArray[np.float32], *, state: bool) -> None:
            rows_seen.append(rows.shape[1])
            super().remember(start, rows, state=state)

    drafter = Watched(
        made.states(ArrayWeights(weights), level), reads_memory=width > 0, shape=GrowthShape(breadth=3, survival=0.0)
    )
    drafting = Drafting(lambda: drafter)
    if source and width:
        drafting = Drafting(lambda: drafter, source.fingerprint, {Plane.MEMORY: width})
    device = replace(without_drafter(), drafting=drafting)
    async with serving(host) as running, connect([Server(f"127.0.0.1:{running.port}", 5.0, 20.0)]) as link:
        engine = ClientEngine(link, device, VOCAB, Codec.BF16, DraftingSettings(rounds=4 if rounds else 0))
        try:
            for temperature in (0.0, 0.7):
                settings = AnswerSettings(Sampling(temperature, seed=3), max_tokens=40)
                engine.rewind(0)
                assert await ask(engine, PROMPT, settings) == plain_text(target, PROMPT, settings)[0]
        finally:
            await engine.close()
    assert set(rows_seen) == ({width} if width else set())


@pytest.mark.parametrize("rounds", [True, False], ids=["rounds", "streamed"])
@pytest.mark.parametrize("kind", ["eagle2", "independent", "moa", "eagle3", "dflash", "dspark"])
async def test_the_text_is_the_targets_own(target: KernelTarget, kind: str, rounds: bool) -> None:
    changes: dict[str, Any] = {"kind": kind, "own_layers": 2}
    if kind == "moa":
        changes = {"lsa": False, "state_entries": (0, 2, 1), "reused_layers": 1}
    if kind == "eagle3":
        changes |= {"state_entries": (0, 2, 1), "draft_vocab": 20, "feature_norm": "each", "normed_feedback": True}
    if kind in ("dflash", "dspark"):
        changes |= {"kind": "dflash", "state_entries": (3, 1), "block_size": 4, "mask_token": 5, "head_norms": True}
    if kind == "dspark":
        changes |= {"anchor_guesses": True, "markov_rank": 8}
    config = replace(checkpoint(0).config, **changes)
    made = Checkpoint(config, fresh_tensors(config, seed=2), "64" * 32)
    await check_texts(target, made, MODEL.tensors, "float32", rounds=rounds)


@pytest.mark.torch
@pytest.mark.skipif(library() is None, reason="there are no kernels for this CPU")
@pytest.mark.parametrize("kind", ["moa", "eagle2"])
@pytest.mark.parametrize("family", ["qwen 3", "gpt-oss", "gemma 4", SHARING])
@pytest.mark.parametrize("rounds", [True, False], ids=["rounds", "streamed"])
async def test_the_text_of_a_mixture_of_experts_is_its_own(family: str, kind: str, rounds: bool) -> None:
    from tests.support.families import tiny_dense, tiny_mixture, weights_of

    model = (tiny_dense if family == SHARING else tiny_mixture)(family, max_position_embeddings=CONTEXT)
    weights = weights_of(model)
    target = KernelTarget(Network(weights, model.config.to_dict()), CONTEXT)
    shape = target.network.stack.shape
    config = DrafterConfig(
        vocab_size=VOCAB, hidden_size=shape.hidden, target_layers=target.layer_count, target_heads=shape.heads,
        target_kv_heads=shape.kv_heads, target_head_dim=shape.head_dim, sa_kv_heads=2, sa_mlp=96, ca_kv_heads=2,
        ca_mlp=96, lsa_heads=4, lsa_kv_heads=2, lsa_mlp=96, target_kv_width=target.new_cache().pages.width,
    )  # fmt: skip
    if kind != "moa":
        config = replace(config, kind=kind, own_layers=1)
    made = Checkpoint(config, fresh_tensors(config, seed=2), "64" * 32)
    await check_texts(target, made, weights.tensors, "int8", rounds=rounds)
