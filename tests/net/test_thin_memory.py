"""Which memory rows a client gets: few while its server drafts and the link holds, all when they are worth it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from moa_client.drafting.drafters import MoaDrafter
from moa_client.engine.engine import ClientEngine
from moa_server.drafting.draft_decision import OwnDrafter
from moa_server.engine.stepper import Stepper
from moa_server.verifier import Target
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.messages import THIN
from moa_shared.sampling.settings import Sampling

from tests.net.client_device import device, stepper, with_drafter
from tests.net.client_talk import Screen, talking, watch
from tests.net.server_drafter import TargetDrafter
from tests.net.server_peer import make_host, plain_text, serving

PROMPT = [5, 17, 42, 8, 17, 42, 9, 3]
SETTINGS = AnswerSettings(Sampling(0.7, seed=4), max_tokens=80, ignore_end_of_text=True)


class ReadingDrafter(MoaDrafter):
    """Notes the positions whose rows have come."""

    states: set[int]
    rows: set[int]

    def remember(self, start: int, rows: npt.NDArray[np.float32], *, state: bool) -> None:
        (self.states if state else self.rows).update(range(start, start + len(rows)))
        super().remember(start, rows, state=state)


@asynccontextmanager
async def talking_to_a_drafting_server(
    target: Target, memory_share: float
) -> AsyncIterator[tuple[ClientEngine, ReadingDrafter]]:
    """An engine and its drafter, for which a server has rows, and a drafter of its own."""
    own = OwnDrafter(lambda: TargetDrafter(target, 0, 1.0), token_bytes=100)
    held, source = device(target, "chain of N = 1"), replace(stepper(target, 1).sources[0], drafter=own)
    assert held.drafting is not None
    drafter = held.drafting.new_drafter()
    assert isinstance(drafter, MoaDrafter)
    drafter.__class__ = ReadingDrafter
    assert isinstance(drafter, ReadingDrafter)
    drafter.states, drafter.rows = set(), set()
    held = with_drafter(held, lambda _: drafter)
    host = make_host(target, stepper=Stepper(target, [source]), draft_nodes=6, memory_share=memory_share)
    async with (
        serving(host) as running,
        talking(target, f"127.0.0.1:{running.port}", None, held=held) as engine,
    ):
        yield engine, drafter


async def test_a_device_whose_server_drafts_gets_few_rows(target: Target) -> None:
    async with talking_to_a_drafting_server(target, 0.005) as (engine, drafter):
        screen = Screen()
        await watch(engine, screen, PROMPT, SETTINGS)
        assert screen.committed == plain_text(target, PROMPT, SETTINGS)[0]
        assert engine.figures.server_drafted > 0
        assert engine.figures.accepted == 0  # this device drafted nothing
        assert drafter.states == set(range(THIN.states))
        assert drafter.rows
        assert all(position % THIN.every == THIN.every - 1 for position in drafter.rows)
        whole = len(PROMPT) + SETTINGS.max_tokens
        assert len(drafter.rows) <= whole / THIN.every
        # Rows of the default model would cost so much, next to what is counted here.
        assert (324 * len(drafter.states) + 216 * len(drafter.rows)) / whole < 35
        few = engine.figures.down_bytes
        assert 0 < engine.figures.memory_bytes < few
    async with talking_to_a_drafting_server(target, 1.0) as (engine, drafter):
        await watch(engine, Screen(), PROMPT, SETTINGS)
        assert set(range(len(PROMPT))) <= drafter.states
        assert engine.figures.down_bytes > 2 * few
