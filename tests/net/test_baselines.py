"""Baselines in the running system: real client and server, and the target's own text, whatever drafts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
from moa.v1 import moa_pb2 as pb
from moa_client.device.loading import Device
from moa_client.drafting.drafters import MoaDrafter
from moa_client.drafting.settings import DraftingSettings
from moa_client.engine.engine import ClientEngine
from moa_client.link.channel import connect
from moa_server.engine.stepper import Stepper
from moa_server.loading import memory_source
from moa_server.target.torch_target import TorchTarget
from moa_shared.drafter import fresh_tensors
from moa_shared.drafter.checkpoint.checkpoint import Checkpoint
from moa_shared.drafting import GrowthShape, draft_chain
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.memory_codec import Codec
from moa_shared.sampling.settings import Sampling

from tests.net.client_device import arrays_of, checkpoint
from tests.net.server_peer import IDENTITY, VOCAB, make_host, plain_text, serving
from tests.net.test_client_engine import PROMPT, ask


def drafter_of(kind: str) -> Checkpoint:
    """A random drafter of the tiny target."""
    config = replace(checkpoint(0).config, kind=kind, own_layers=2)
    return Checkpoint(config, fresh_tensors(config, seed=2), "64" * 32)


@pytest.mark.parametrize("rounds", [True, False], ids=["rounds", "streamed"])
@pytest.mark.parametrize("kind", ["eagle2", "independent"])
async def test_the_text_is_the_targets_own(target: TorchTarget, kind: str, rounds: bool) -> None:
    made = drafter_of(kind)
    source = memory_source(made, target)
    host = make_host(target, stepper=Stepper(target, [source] if source else []))
    model: Any = target.model
    states = made.states(arrays_of(model), "float32")
    rows_seen = []

    class Watched(MoaDrafter):
        def remember(self, start: int, rows: npt.NDArray[np.float32], *, state: bool) -> None:
            rows_seen.append(rows.shape[1])
            super().remember(start, rows, state=state)

    width = made.config.memory_width
    drafter = Watched(
        states,
        lambda state, sampling: draft_chain(state, 4, sampling),
        reads_memory=width > 0,
        shape=GrowthShape(breadth=3, survival=0.0),
    )
    identity = pb.Identity()
    identity.CopyFrom(IDENTITY)
    if not width:
        identity.drafter_fingerprint = b""
    device = Device(cast(Any, None), cast(Any, None), identity, drafter, width, 0)
    async with serving(host) as running, connect(f"127.0.0.1:{running.port}", 5.0, 20.0) as link:
        engine = ClientEngine(link, device, VOCAB, Codec.BF16, DraftingSettings(rounds=rounds))
        try:
            for temperature in (0.0, 0.7):
                settings = AnswerSettings(Sampling(temperature, seed=3), max_tokens=40)
                expected, _ = plain_text(target, PROMPT, settings)
                engine.reset()
                assert await ask(engine, PROMPT, settings) == expected
        finally:
            await engine.close()
    assert set(rows_seen) == ({width} if width else set())
