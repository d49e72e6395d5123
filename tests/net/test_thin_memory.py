"""Which memory rows a client gets: few while its server drafts and the link holds, all when they are worth it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from moa_client.conversation.events import Committed, Event, LinkState
from moa_client.device.loading import Device
from moa_client.drafting.drafters import MoaDrafter
from moa_client.drafting.settings import DraftingSettings
from moa_client.engine.engine import ClientEngine
from moa_client.link.monitor import LEAST_MS
from moa_server.drafting.session_drafter import OwnDrafter
from moa_server.engine.stepper import MemorySource, Stepper
from moa_server.verifier import Target
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.messages import THIN
from moa_shared.sampling.settings import Sampling

from netsim import LinkHandle, open_link
from tests.net.client_device import device, stepper, with_drafter
from tests.net.client_talk import Screen, settle, talking, watch
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


def reading_device(target: Target) -> tuple[Device, ReadingDrafter]:
    made = device(target, "chain of N = 1")
    assert made.drafting is not None
    drafter = made.drafting.new_drafter()
    assert isinstance(drafter, MoaDrafter)
    drafter.__class__ = ReadingDrafter
    assert isinstance(drafter, ReadingDrafter)
    drafter.states, drafter.rows = set(), set()
    return with_drafter(made, lambda _: drafter), drafter


@asynccontextmanager
async def talking_to_a_drafting_server(
    target: Target,
    *,
    memory_share: float = 0.005,
    drafting: str = "auto",
    settings: DraftingSettings | None = None,
    halves: tuple[MemorySource, Device, ReadingDrafter] | None = None,
) -> AsyncIterator[tuple[LinkHandle, ClientEngine, ReadingDrafter]]:
    """An engine, over a link that can be cut, and its drafter, for which a server has rows, and a drafter of its own."""
    if halves is None:
        own = OwnDrafter(lambda: TargetDrafter(target, 0, 1.0), token_bytes=100)
        halves = replace(stepper(target, 1).sources[0], drafter=own), *reading_device(target)
    drafting_source, held, drafter = halves
    host = make_host(
        target,
        stepper=Stepper(target, [drafting_source]),
        draft_nodes=6,
        memory_share=memory_share,
        drafting=drafting,
    )
    async with (
        serving(host) as running,
        open_link("perfect", upstream=f"127.0.0.1:{running.port}") as link,
        talking(target, link.target, settings, held=held) as engine,
    ):
        yield link, engine, drafter


async def test_a_device_whose_server_drafts_gets_few_rows(target: Target) -> None:
    async with talking_to_a_drafting_server(target) as (_, engine, drafter):
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
    async with talking_to_a_drafting_server(target, memory_share=1) as (_, engine, drafter):
        await watch(engine, Screen(), PROMPT, SETTINGS)
        assert set(range(len(PROMPT))) <= drafter.states
        assert engine.figures.down_bytes > 2 * few


async def test_a_cut_of_a_link_that_held_is_bridged_and_then_all_rows_come(target: Target) -> None:
    async with talking_to_a_drafting_server(target) as (link, engine, drafter):
        screen = Screen()

        async def cut_and_heal(event: Event) -> None:
            if isinstance(event, Committed) and not screen.cuts and len(screen.committed) > 20:
                screen.cuts += 1
                assert drafter.states == set(range(THIN.states)) or LinkState.OFFLINE in screen.states
                await link.cut("both")
            elif screen.cuts == 1 and len(screen.provisional) >= 3:
                screen.cuts += 1
                await asyncio.sleep(1.2 * LEAST_MS / 1e3)  # so long is the cut
                await link.heal()

        await watch(engine, screen, PROMPT, SETTINGS, cut_and_heal)
        await settle(engine, screen)
        assert screen.cuts == 2
        assert screen.most_provisional >= 3
        assert screen.text == plain_text(target, PROMPT, SETTINGS)[0]
        await watch(engine, Screen(), [7, 7], SETTINGS)
        whole = len(PROMPT) + SETTINGS.max_tokens
        assert set(range(whole)) <= drafter.states
