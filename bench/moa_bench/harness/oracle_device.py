"""Devices whose drafter is an oracle: everything else of theirs is the client program's own."""

import dataclasses
from collections.abc import Callable
from typing import cast

from moa_client.device.loading import Device
from moa_client.drafting.drafters import MoaDrafter
from moa_client.drafting.settings import DraftingSettings
from moa_shared.drafter import DraftState
from moa_shared.drafting import draft_chain

from moa_bench.harness.oracle import OracleDrafter, Script

ROUNDS = DraftingSettings(drafting="device", rounds=True, run_ahead=False)
"""Synchronous rounds: what a forward is fed does not depend on how fast anything was."""


def with_oracle(device: Device, script: Script, draft_ms: float, length: int) -> Device:
    """The same device with an oracle in its drafter's place, drafting chains.

    Args:
        device: of a client whose drafter reads memory, which comes as it would.
        draft_ms: of a draft step.
        length: of a whole chain, for rounds.
    """
    new_state = cast("Callable[[], DraftState]", lambda: OracleDrafter(script, draft_ms))
    drafter = MoaDrafter(
        new_state, lambda state, sampling: draft_chain(state, length, sampling), reads_memory=device.memory_width > 0
    )
    return dataclasses.replace(device, drafter=drafter)
