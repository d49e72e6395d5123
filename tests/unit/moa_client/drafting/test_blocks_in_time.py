"""Drafts in blocks over virtual time: the client's own loop, pacing and frames, with a script in the drafter's place.

A plain step of the server takes 50 ms (`moa_bench.simulation`).
"""

from __future__ import annotations

import pytest
from moa_bench.simulation.answer import simulate
from moa_bench.simulation.device import ScriptedDrafter
from moa_bench.simulation.events import EventLoop
from moa_bench.simulation.server import Costs, SimulatedServer
from moa_bench.simulation.text import PROMPT, ScriptedText, by_chance
from moa_bench.simulation.user import SimulatedLink, SimulatedUser
from moa_client.drafting.online import OnlineDrafting
from moa_client.drafting.settings import DraftingSettings
from moa_client.drafting.streamed import DraftExtended, DraftStep
from moa_client.memory.plan import MemoryPlan
from moa_shared.drafting import Growth
from moa_shared.protocol.memory_codec import Codec

LEVELS, TOKENS = 15, 600
SETTINGS = DraftingSettings()


class ScriptedBlocks(ScriptedDrafter):
    """Each step guesses all levels to the last one of a block."""

    def _end_step(self, step: DraftStep) -> None:
        self.busy = False
        self.drafted_nodes += 1  # of which it counts the steps
        tokens = list(step.draft.tokens)
        while len(tokens) < LEVELS:
            tokens.append(self.guess(step.committed, tokens))
        growth = Growth.chain(step.draft, tokens[len(step.draft) :])
        self.inbox.post(DraftExtended(step, growth, self.draft_ms))


def answer(acceptance: float, rtt_ms: float, block_ms: float) -> tuple[float, float]:
    """Speed over plain streaming, and tokens for each block."""
    loop, link = EventLoop(), SimulatedLink.of_delay(rtt_ms / 2)
    text = ScriptedText(TOKENS, by_chance(acceptance, 0))
    user = SimulatedUser(loop, SimulatedServer(loop, Costs()), text, link, SETTINGS, block_ms)
    device = user.device
    device.drafter = ScriptedBlocks(text.draft_on, block_ms, loop.after, 1, device)
    memory = MemoryPlan(None, {}, Codec.INT4)
    device.online = OnlineDrafting(SETTINGS, device.conversation, device.drafter, memory, block_levels=LEVELS)
    device.online.window.rtt_ms.add(link.rtt_ms)
    device.online.on_opened(server_drafts=False)
    user.ask(TOKENS)
    loop.run(lambda: not device.is_answering)
    assert list(device.conversation.answer) == text.tokens[len(PROMPT) : len(PROMPT) + TOKENS]
    took_s = (user.arrivals_ms[-1] - user.arrivals_ms[0]) / 1e3
    plain = simulate(acceptance, link, tokens=TOKENS)
    return (TOKENS - 1) / took_s / plain.tokens_per_s, TOKENS / max(1, device.drafter.drafted_nodes)


@pytest.mark.parametrize("rtt_ms", [0.5, 60])
def test_a_block_that_takes_longer_than_a_step_of_the_server_pays_by_its_later_levels(rtt_ms: float) -> None:
    speed, tokens_a_block = answer(0.9, rtt_ms, block_ms=90.0)
    assert speed > 1.8
    assert tokens_a_block > 6
