"""Links cut in an answer: the reader sees provisional text, and in the end the target's own."""

from __future__ import annotations

import random

import pytest
from moa.v1 import moa_pb2 as pb
from moa_client.conversation.events import (
    Committed,
    Ended,
    Event,
    ExecutionChanged,
    HeldBack,
    LinkState,
    Provisional,
    Settled,
)
from moa_client.drafting.settings import DraftingSettings, StandaloneRule
from moa_server.app import start
from moa_server.running.running_server import RunningServer
from moa_server.verifier import Target
from moa_shared.protocol.finish_rule import AnswerSettings, Finish
from moa_shared.sampling.settings import Sampling

from netsim import LinkHandle, open_link
from tests.net.client_device import stepper
from tests.net.client_talk import PROMPT, SETTINGS, Screen, settle, talking, talking_over_a_link, watch
from tests.net.server_peer import END_OF_TEXT, IDENTITY, make_host, plain_text, serving


@pytest.mark.parametrize("name", ["chain", "tree", "chain of N = 1"])
async def test_an_outage_in_an_answer(target: Target, name: str) -> None:
    expected, _ = plain_text(target, PROMPT, SETTINGS)
    screen = Screen()
    async with (
        serving(make_host(target, stepper=stepper(target, int(name.endswith("N = 1"))))) as running,
        talking(target, f"127.0.0.1:{running.port}", DraftingSettings(tree=name == "tree"), name=name) as engine,
    ):

        async def cut_and_heal(event: Event) -> None:
            if LinkState.OFFLINE not in screen.states and len(screen.committed) > 5:
                engine.go_offline()
            elif len(screen.provisional) >= 12 and screen.states[-1] is LinkState.OFFLINE:
                engine.go_online()

        await watch(engine, screen, on_event=cut_and_heal)
        assert screen.committed == expected
        assert screen.end == Ended(Finish.MAX_TOKENS)
        turns = [
            state for state in screen.states if state in (LinkState.OFFLINE, LinkState.BACK)
        ]  # a busy machine is slow
        assert turns[:2] == [LinkState.OFFLINE, LinkState.BACK]
        assert screen.most_provisional >= 12
        assert list(engine.conversation.answer) == expected


async def test_an_answer_that_ends_standalone_is_verified_at_the_next_contact(target: Target) -> None:
    short = AnswerSettings(Sampling(0.7, seed=4), max_tokens=20, ignore_end_of_text=True)
    async with (
        serving(make_host(target, stepper=stepper(target, 0))) as running,
        talking(target, f"127.0.0.1:{running.port}", offline=True) as engine,
    ):
        first, second = Screen(), Screen()
        await watch(engine, first, settings=short)
        await watch(engine, second, [9, 9, 4], short)
        assert len(first.provisional) == len(second.provisional) == 20
        assert first.end == second.end == Ended(Finish.MAX_TOKENS, provisional=True)
        assert engine.unsettled == 2
        engine.go_online()
        settled = [event async for event in engine.settle() if isinstance(event, Settled)]
        assert engine.unsettled == 0
        texts = [plain_text(target, PROMPT, short)[0]]
        texts.append(plain_text(target, [*PROMPT, *texts[0], 9, 9, 4], short)[0])
        assert [list(event.tokens) for event in settled] == texts
        assert [event.changed for event in settled] == [
            texts[0] != first.provisional, texts[1] != second.provisional
        ]  # fmt: skip
        assert engine.conversation.tokens == [*PROMPT, *texts[0], 9, 9, 4, *texts[1]]


async def test_text_that_is_too_unlikely_waits_for_the_server_and_the_answer_goes_on(target: Target) -> None:
    """Nothing is shown, the answer does not end, and the server continues it in place when it is back."""
    expected, _ = plain_text(target, PROMPT, SETTINGS)
    screen = Screen()
    careful = DraftingSettings(standalone=StandaloneRule("auto", least_chance=1.0))
    async with talking_over_a_link(target, careful) as (link, engine):

        async def cut_and_heal(event: Event) -> None:
            if not screen.cuts and len(screen.committed) > 5:
                screen.cuts += 1
                await link.cut("both")
            elif isinstance(event, HeldBack):
                assert engine.status.holds_back
                await link.heal()

        await watch(engine, screen, on_event=cut_and_heal)
        assert screen.held_back
        assert screen.most_provisional == 0
        assert screen.committed == expected
        assert screen.end == Ended(Finish.MAX_TOKENS)


async def test_a_user_who_wants_the_text_gets_it_right_or_not(target: Target) -> None:
    expected, _ = plain_text(target, PROMPT, SETTINGS)
    screen = Screen()
    careful = DraftingSettings(standalone=StandaloneRule("never"))
    async with talking_over_a_link(target, careful) as (link, engine):

        async def insist(event: Event) -> None:
            if not screen.cuts and len(screen.committed) > 5:
                screen.cuts += 1
                await link.cut("both")
            elif isinstance(event, HeldBack):
                engine.write_standalone()
            elif len(screen.provisional) == 12:
                await link.heal()

        await watch(engine, screen, on_event=insist)
        assert screen.most_provisional >= 12
        assert screen.committed == expected
        assert not engine.status.holds_back


async def test_a_prompt_that_comes_back_leaves_its_answer_to_the_server(target: Target) -> None:
    """It goes on when there is one, and is told as a whole."""
    screen = Screen()
    rule = StandaloneRule("auto", least_chance=1.0, end_ms=60_000.0, leave_ms=50.0)
    async with talking_over_a_link(target, DraftingSettings(standalone=rule)) as (link, engine):

        async def cut(event: Event) -> None:
            if not screen.cuts and len(screen.committed) > 5:
                screen.cuts += 1
                await link.cut("both")

        await watch(engine, screen, on_event=cut)
        assert screen.end == Ended(Finish.UNFINISHED, provisional=True)
        assert engine.unsettled == 1
        await link.heal()
        (settled,) = [event async for event in engine.settle() if isinstance(event, Settled)]
        assert settled.changed
        assert screen.committed + list(settled.tokens) == plain_text(target, PROMPT, SETTINGS)[0]


async def test_an_answer_does_not_end_alone_a_moment_after_the_loss(target: Target) -> None:
    short = AnswerSettings(Sampling(0.7, seed=4), max_tokens=20, ignore_end_of_text=True)
    screen = Screen()
    patient = DraftingSettings(standalone=StandaloneRule(end_ms=60_000.0))
    async with talking_over_a_link(target, patient) as (link, engine):

        async def cut_and_heal(event: Event) -> None:
            if not screen.cuts and screen.committed:
                screen.cuts += 1
                await link.cut("both")
            elif len(screen.committed) + len(screen.provisional) == 20:
                await link.heal()

        await watch(engine, screen, settings=short, on_event=cut_and_heal)
        assert screen.end == Ended(Finish.MAX_TOKENS)
        assert screen.committed == plain_text(target, PROMPT, short)[0]


async def test_stopping_a_standalone_answer(target: Target) -> None:
    screen = Screen()
    async with (
        serving(make_host(target, stepper=stepper(target, 0))) as running,
        talking(target, f"127.0.0.1:{running.port}", offline=True) as engine,
    ):

        async def stop(event: Event) -> None:
            if len(screen.provisional) == 7:
                engine.stop()

        await watch(engine, screen, on_event=stop)
        assert screen.end == Ended(Finish.CANCELLED, provisional=True)
        shown = len(screen.provisional)
        assert 7 <= shown < 20
        engine.go_online()
        settled = [event async for event in engine.settle() if isinstance(event, Settled)]
        assert list(settled[0].tokens) == plain_text(target, PROMPT, SETTINGS)[0][:shown]


async def test_an_answer_that_continues_in_another_arithmetic_says_so(target: Target) -> None:
    """A replica with the same model and another context, end-of-text set or kernels."""
    expected, _ = plain_text(target, PROMPT, SETTINGS)
    screen = Screen()
    running = await start(make_host(target, stepper=stepper(target, 0)))
    try:
        async with talking(target, f"127.0.0.1:{running.port}") as engine:

            async def replace_server(event: Event) -> None:
                nonlocal running
                if len(screen.committed) > 5 and running.host.services.served.identity.execution == IDENTITY.execution:
                    await running.stop(0.0)
                    host = make_host(target, stepper=stepper(target, 0), port=running.port)
                    other = pb.Identity(execution=b"x" * 32)
                    host.services.served.identity.MergeFrom(other)
                    running = await start(host)

            await watch(engine, screen, on_event=replace_server)
            assert screen.committed == expected
            assert screen.notices == [ExecutionChanged("float32", exact=False, fingerprint=engine.device.fingerprint)]
            assert engine.device.identity.execution == b"x" * 32
            assert engine.device.end_of_text == {END_OF_TEXT}
            after = Screen()
            await watch(engine, after)  # the next answer begins on it
            assert not after.notices
    finally:
        await running.stop(0.0)


class Trouble:
    """One thing after another happens to the link or the server, at random places of an answer."""

    def __init__(self, link: LinkHandle, target: Target, running: RunningServer, seed: int) -> None:
        self.running = running
        self._link = link
        self._target = target
        self._random = random.Random(seed)
        self._next = self._random.randint(3, 12)
        self._seen = 0
        self.happened: list[str] = []

    async def on_event(self, event: Event) -> None:
        if isinstance(event, Committed | Provisional):
            self._seen += len(event.tokens)
        if self._seen < self._next:
            return
        self._next = self._seen + self._random.randint(3, 30)
        kind = self._random.choice(["cut", "up", "down", "reset", "fin", "restart"])
        self.happened.append(kind)
        if kind == "reset":
            await self._link.reset()
        elif kind == "fin":
            await self._link.fin()
        elif kind == "restart":
            port = self.running.port
            await self.running.stop(0.0)
            self.running = await start(make_host(self._target, stepper=stepper(self._target, 0), port=port))
        else:
            direction = "both" if kind == "cut" else kind
            await self._link.cut(direction, seconds=self._random.uniform(0.05, 0.6))


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_happens_the_text_is_that_of_an_undisturbed_run(target: Target, seed: int) -> None:
    expected, _ = plain_text(target, PROMPT, SETTINGS)
    running = await start(make_host(target, stepper=stepper(target, 0)))
    try:
        async with (
            open_link("perfect", upstream=f"127.0.0.1:{running.port}", seed=seed) as link,
            talking(target, link.target) as engine,
        ):
            screen, trouble = Screen(), Trouble(link, target, running, seed)
            try:
                await watch(engine, screen, on_event=trouble.on_event)
                await link.heal()
                await settle(engine, screen)
            finally:
                running = trouble.running
            assert trouble.happened
            assert engine.conversation.tokens == [*PROMPT, *expected]
            assert screen.text == expected
    finally:
        await running.stop(0.0)
