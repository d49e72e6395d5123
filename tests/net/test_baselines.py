"""Drafters of other kinds in the running system: real client and server, and the target's own text, whatever drafts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
from moa.v1 import moa_pb2 as pb
from moa_client.device.loading import Device, Drafting
from moa_client.drafting.drafters import MoaDrafter
from moa_server.engine.stepper import Stepper
from moa_server.loading import memory_source
from moa_server.verifier.kernel_target import KernelTarget
from moa_shared.drafter import ArrayWeights, fresh_tensors
from moa_shared.drafter.checkpoint.checkpoint import Checkpoint
from moa_shared.drafting import GrowthShape, draft_chain

from tests.net.client_device import checkpoint
from tests.net.drafted_texts import check_texts
from tests.net.server_peer import IDENTITY, MODEL, make_host


def drafter_of(kind: str) -> Checkpoint:
    """A random drafter of the tiny target."""
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
    return Checkpoint(config, fresh_tensors(config, seed=2), "64" * 32)


@pytest.mark.parametrize("rounds", [True, False], ids=["rounds", "streamed"])
@pytest.mark.parametrize("kind", ["eagle2", "independent", "moa", "eagle3", "dflash", "dspark"])
async def test_the_text_is_the_targets_own(target: KernelTarget, kind: str, rounds: bool) -> None:
    made = drafter_of(kind)
    source = memory_source(made, target)
    host = make_host(target, stepper=Stepper(target, [source] if source else []))
    states = made.states(ArrayWeights(MODEL.tensors), "float32")
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
    device = Device(cast(Any, None), cast(Any, None), identity, Drafting(drafter, width))
    await check_texts(host, device, target, rounds=rounds)
    assert set(rows_seen) == ({width} if width else set())
