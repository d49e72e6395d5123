"""Cuts of real links and connections in an answer; what else may happen to a link is simulated (moa_testing)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from moa_client.conversation.events import Ended, Event, LinkState
from moa_client.drafting.settings import DraftingSettings, StandaloneRule
from moa_server.verifier import Target
from moa_shared.protocol.finish_rule import Finish

from netsim import LinkHandle, open_link
from tests.net.client_device import stepper
from tests.net.client_talk import PROMPT, SETTINGS, Screen, settle, talking, watch
from tests.net.server_peer import make_host, plain_text, serving

# The server waits for drafts: else, on a busy machine, it has the whole answer ready before the cut.
WAITING = DraftingSettings(rounds=4, standalone=StandaloneRule(end_ms=60_000.0))
CUTS: dict[str, Callable[[LinkHandle], Awaitable[object]]] = {
    "cut": lambda link: link.cut("both"),
    "cut towards the device": lambda link: link.cut("down"),
    "reset": lambda link: link.reset(),
    "ended": lambda link: link.fin(),
}


@pytest.mark.parametrize(
    ("how", "name"), [("cut", "tree"), ("cut", "chain of N = 1"), *((how, "chain") for how in CUTS)]
)
async def test_a_link_that_is_lost_in_an_answer(target: Target, how: str, name: str) -> None:
    """The memory of what was verified comes again, and the text is the target's."""
    screen = Screen()
    host = make_host(target, stepper=stepper(target, int(name.endswith("N = 1"))))
    async with (
        serving(host) as running,
        open_link("perfect", upstream=f"127.0.0.1:{running.port}") as link,
        talking(target, link.target, WAITING, name=name) as engine,
    ):

        async def lose_and_heal(event: Event) -> None:
            if not screen.cuts and len(screen.committed) > 5:
                screen.cuts = 1
                await CUTS[how](link)
            elif screen.cuts == 1 and len(screen.provisional) >= 3:
                screen.cuts = 2
                await link.heal()

        await watch(engine, screen, on_event=lose_and_heal)
        await settle(engine, screen)
    assert screen.text == plain_text(target, PROMPT, SETTINGS)[0]
    assert screen.end == Ended(Finish.MAX_TOKENS)
    assert screen.cuts
    assert "cut" not in how or LinkState.OFFLINE in screen.states


async def test_connections_that_grow_old_cost_no_word(target: Target) -> None:
    host = make_host(target, stepper=stepper(target, 0), connection_age_seconds=0.5, connection_age_grace_seconds=0.2)
    async with serving(host) as running, talking(target, f"127.0.0.1:{running.port}") as engine:
        expected, _ = plain_text(target, PROMPT, SETTINGS)
        answers = 0
        while engine.connection.stream_number < 4:
            screen = Screen()
            await watch(engine, screen)
            await settle(engine, screen)
            assert screen.text == expected
            engine.rewind(0)
            answers += 1
        assert answers > 1
