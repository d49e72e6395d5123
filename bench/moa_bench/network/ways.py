"""The client program's ways to answer, as the network experiment runs them: with an oracle, and with a real drafter."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from moa_client.device.loading import Device
from moa_client.drafting.drafters import MoaDrafter
from moa_client.drafting.settings import DraftingSettings
from moa_shared.drafting import draft_chain
from moa_shared.errors import InternalError

from moa_bench.harness.split_client import SplitClient
from moa_bench.network.emulated import Link
from moa_bench.network.network import Way
from moa_bench.network.oracle import OracleDrafter, Script
from moa_bench.network.prediction import Drafting, Schedule, predict_seconds
from moa_bench.network.step_cost import StepCost
from moa_bench.report.answers import AnswerClient, TimedAnswer

if TYPE_CHECKING:
    from moa_shared.drafter import DraftState

LONGEST_CHAIN = 32
MODES = {
    "streamed": DraftingSettings(drafting="device"),
    "waiting": DraftingSettings(drafting="device", run_ahead=False),
    "rounds": DraftingSettings(drafting="device", rounds=True, run_ahead=False),
}


def best_length(acceptance: float, rtt_ms: float, draft_ms: float, cost: StepCost) -> int:
    """The chain length at which synchronous rounds are fastest.

    A round of k drafts costs the round trip, k draft steps and one verification of k + 1 tokens, and brings
    E = (1 - a^(k + 1)) / (1 - a) tokens on average.
    """

    def tokens_per_ms(length: int) -> float:
        tokens = sum(acceptance**place for place in range(length + 1))
        return tokens / (rtt_ms + length * draft_ms + cost.step_ms + cost.row_ms * length)

    return max(range(1, LONGEST_CHAIN + 1), key=tokens_per_ms)


def oracle_way(
    name: str,
    drafting: Drafting,
    runner: asyncio.Runner,
    device: Device,
    draft_ms: float,
    cost: StepCost,
    acceptances: tuple[float, ...] | None = None,
) -> Way:
    """Chains of an oracle; rounds have the length that is best for its acceptance and the link.

    Args:
        device: of a client whose drafter reads memory; the oracle takes its place, and its memory comes as it would.
        draft_ms: how long a draft step of the oracle takes.
        cost: of the server's forwards.
        acceptances: only at these; None: at all.
    """

    def schedule(link: Link, script: Script) -> Schedule:
        return Schedule(drafting, best_length(script.acceptance, link.rtt_ms, draft_ms, cost), draft_ms)

    def connect(link: Link, address: str, script: Script | None) -> AnswerClient:
        if script is None:
            raise InternalError("An oracle was asked to draft without a script.")
        playing = with_oracle(device, script, draft_ms, schedule(link, script).length)
        return SplitClient(runner, address, playing, mode=MODES[drafting])

    def predict(link: Link, script: Script, plain: TimedAnswer) -> float:
        return predict_seconds(schedule(link, script), link, script, plain, cost)

    return Way(name, connect, predict, acceptances)


def real_way(name: str, mode: DraftingSettings, runner: asyncio.Runner, device: Device) -> Way:
    """The drafter that the device holds."""

    def connect(link: Link, address: str, script: Script | None) -> AnswerClient:
        return SplitClient(runner, address, device, mode=mode)

    return Way(name, connect)


def with_oracle(
    device: Device, script: Script, draft_ms: float, length: int, steps: list[tuple[float, float]] | None = None
) -> Device:
    """The same device with an oracle in its drafter's place, drafting chains.

    Args:
        length: of a whole chain, for rounds.
        steps: takes the times of draft steps.
    """
    new_state = cast("Callable[[], DraftState]", lambda: OracleDrafter(script, draft_ms, steps))
    drafter = MoaDrafter(
        new_state, lambda state, sampling: draft_chain(state, length, sampling), reads_memory=device.memory_width > 0
    )
    return dataclasses.replace(device, drafter=drafter)
