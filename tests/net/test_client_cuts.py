"""Links cut in an answer: the reader sees provisional text, and in the end the target's own."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from moa.v1 import moa_pb2 as pb
from moa_client.conversation.answer_text import AnswerDecoder, AnswerText
from moa_client.conversation.events import (
    AnswerEvent,
    Committed,
    Earlier,
    Ended,
    Event,
    ExecutionChanged,
    LinkChanged,
    LinkState,
    Provisional,
    Settled,
)
from moa_client.device.loading import Device
from moa_client.drafting.settings import DraftingSettings, StandaloneRule
from moa_server.app import start
from moa_server.running.running_server import RunningServer
from moa_server.verifier import Request, Target, TargetOutput
from moa_server.verifier.kernel_target import KernelTarget
from moa_shared.drafting import Growth
from moa_shared.protocol.finish_rule import AnswerSettings, Finish
from moa_shared.sampling.settings import Sampling
from moa_shared.tree import DraftTree

from netsim import LinkHandle, open_link
from tests.net.client_device import device, stepper
from tests.net.client_talk import PROMPT, SETTINGS, Screen, once, settle, talking, talking_over_a_link, watch
from tests.net.server_peer import CONTEXT, END_OF_TEXT, IDENTITY, make_host, plain_text, serving, tiny_target


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


async def test_a_prompt_that_comes_back_leaves_its_answer_to_the_server(target: Target) -> None:
    """It goes on when there is one, and is told as a whole."""
    screen = Screen()
    rule = StandaloneRule("auto", least_chance=1.0, end_ms=60_000.0, leave_ms=50.0)
    async with talking_over_a_link(target, DraftingSettings(standalone=rule)) as (link, engine):
        await watch(engine, screen, on_event=once(screen, lambda: link.cut("both")))
        assert screen.end == Ended(Finish.UNFINISHED, provisional=True)
        assert engine.unsettled == 1
        await link.heal()
        (settled,) = [event async for event in engine.settle() if isinstance(event, Settled)]
        assert settled.changed
        assert screen.committed + list(settled.tokens) == plain_text(target, PROMPT, SETTINGS)[0]


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


LENGTH = 120
GREEDY = AnswerSettings(max_tokens=LENGTH, ignore_end_of_text=True)
SAMPLED = AnswerSettings(Sampling(1.0, seed=11), max_tokens=LENGTH, ignore_end_of_text=True)
PATIENT = DraftingSettings(standalone=StandaloneRule(end_ms=60_000.0))  # no answer ends without the server
# The server waits for drafts: else, on a busy machine, it has the whole answer ready before the first cut.
WAITING = replace(PATIENT, run_ahead=False)


class Cuts:
    """Cuts a link when so many tokens are committed, and heals it when the device has written a few after each cut."""

    def __init__(self, link: LinkHandle, screen: Screen, places: Sequence[int]) -> None:
        self._link = link
        self._screen = screen
        self._places = list(places)
        self._is_cut = False

    async def on_event(self, event: Event) -> None:
        if self._is_cut:
            if isinstance(event, Provisional) and len(self._screen.provisional) >= 3:
                self._is_cut = False
                await self._link.heal()
        elif self._places and isinstance(event, Committed) and len(self._screen.committed) >= self._places[0]:
            del self._places[0]
            self._screen.cuts += 1
            self._is_cut = True
            await self._link.cut("both")


@pytest.mark.parametrize("tenth", [1, 5, 9])
async def test_a_cut_early_halfway_and_late_in_an_answer(target: KernelTarget, tenth: int) -> None:
    await check_cuts(target, SAMPLED, [tenth * LENGTH // 10])


async def test_four_cuts_in_one_answer(target: KernelTarget) -> None:
    await check_cuts(target, GREEDY, range(1, LENGTH, LENGTH // 4))


async def check_cuts(target: KernelTarget, settings: AnswerSettings, places: Sequence[int]) -> None:
    screen = Screen()
    async with talking_over_a_link(target, WAITING) as (link, engine):
        await watch(engine, screen, settings=settings, on_event=Cuts(link, screen, places).on_event)
    assert screen.cuts == len(places)
    assert screen.most_provisional >= 3
    assert screen.committed == plain_text(target, PROMPT, settings)[0]
    assert screen.end == Ended(Finish.MAX_TOKENS)


@pytest.mark.parametrize("lost", ["both", "down"])
@pytest.mark.parametrize("is_open", [False, True], ids=["before the stream", "after the question"])
async def test_a_cut_before_the_first_token(target: KernelTarget, lost: Any, is_open: bool) -> None:
    """The whole beginning of the answer is the device's; the server decides it from its first token on."""
    screen = Screen()
    async with talking_over_a_link(target, PATIENT) as (link, engine):
        if is_open:
            engine.availability.state = LinkState.OFFLINE  # so that its return is reported
            engine.go_online()
            attending = engine.attend()
            assert isinstance(await anext(attending), LinkChanged)
            await attending.aclose()
            assert engine.connection.is_up
        await link.cut(lost)

        async def heal(event: Event) -> None:
            if isinstance(event, Provisional) and len(screen.provisional) == 3:
                assert not screen.committed
                await link.heal()

        await watch(engine, screen, settings=SAMPLED, on_event=heal)
    assert screen.most_provisional >= 3
    assert screen.committed == plain_text(target, PROMPT, SAMPLED)[0]
    assert screen.end == Ended(Finish.MAX_TOKENS)


CODE = """\
def bisect(rows, wanted):
    low, high = 0, len(rows)
    while low < high:
        middle = (low + high) // 2
\tif rows[middle] < wanted:  # a tab


            low = middle + 1
    return low
"""
OTHER = "Größe, Ελλάδα, 日本語の文章です。👩‍👩‍👧 naïve конец"
TEXTS = {"code": CODE, "another language": OTHER}
ASKED = [95, 94, 0]  # the texts' tokens are numbered from 1
WHOLE = AnswerSettings(max_tokens=90)


class Script:
    """A text in tokens of a few bytes, each of them once: token n is the n-th piece, the last is followed by the end."""

    def __init__(self, text: str) -> None:
        data = text.encode()
        size = -(-len(data) // 80)
        self.pieces = [b"", *(data[at : at + size] for at in range(0, len(data), size))]
        self.length = len(self.pieces) - 1
        assert self.length < min(ASKED[:2])

    def decode(self, tokens: Sequence[int]) -> str:
        """As tokenizers do: a part of a character is a replacement character."""
        return b"".join(self.pieces[token] for token in tokens if token <= self.length).decode(errors="replace")

    def next(self, token: int) -> int:
        return token + 1 if token < self.length else END_OF_TEXT

    def guess(self, token: int) -> int:
        """The next token, or, where a word of the drafter's own would be text too, now and then another one."""
        whole = [first for first in range(1, self.length + 1) if self.is_whole(first - 1)]
        others = [first for first in whole if first > token + 1]
        return others[0] if token % 4 == 0 and self.is_whole(token) and others else self.next(token)

    def is_whole(self, token: int) -> bool:
        """Whether a character ends with this token."""
        return "�" not in self.decode(range(1, token + 1))


class ScriptTarget(KernelTarget):
    """The tiny target, made to write a script."""

    def __init__(self, script: Script) -> None:
        super().__init__(tiny_target().network, CONTEXT, kv="f32")
        self._script = script

    def _run(self, requests: Sequence[Request], depths: Sequence[Sequence[int]]) -> list[TargetOutput]:
        outputs = super()._run(requests, depths)
        return [
            replace(output, logits=self._decided(*each))
            for output, each in zip(outputs, zip(requests, outputs, strict=True), strict=True)
        ]

    def _decided(self, request: Request, output: TargetOutput) -> npt.NDArray[np.float32]:
        logits = output.logits.copy()
        for row, at in enumerate(request.logits_for):
            logits[row, self._script.next(request.tokens[at])] += 1000.0
        return logits


class ScriptDrafter:
    """Guesses the script, mostly right."""

    reads_memory = False
    most_depth = None

    def __init__(self, script: Script, at_once: int) -> None:
        self._script = script
        self._at_once = at_once
        self._tokens: list[int] = []

    def restart(self, tokens: Sequence[int]) -> None:
        self._tokens = list(tokens)

    def commit(self, tokens: Sequence[int]) -> None:
        self._tokens += tokens

    def remember(self, start: int, rows: npt.NDArray[np.float32], *, state: bool) -> None:
        """It needs no memory."""

    def draft(self, sampling: Sampling) -> DraftTree:
        return DraftTree.chain([self._script.guess(self._tokens[-1])])

    def grow(self, draft: DraftTree, sampling: Sampling) -> Growth:
        return Growth((self._script.guess([*self._tokens, *draft.tokens][-1]),), (len(draft) - 1,))

    def write(self, draft: DraftTree, sampling: Sampling) -> tuple[int, float] | None:
        if len(draft) >= self._at_once:
            return None
        return self._script.guess([*self._tokens, *draft.tokens][-1]), 0.9


def script_device(target: ScriptTarget, script: Script, at_once: int = 1000) -> Device:
    drafter = ScriptDrafter(script, at_once)
    return replace(device(target, "none"), end_of_text=frozenset({END_OF_TEXT})).with_drafting(drafter=drafter)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
async def test_a_text_that_is_lost_and_found_at_every_third_token_is_shown_whole(text: str) -> None:
    """Also in the middle of a character: the reader never sees a part of one."""
    script = Script(text)
    target = ScriptTarget(script)
    decoder, screen = AnswerDecoder(AnswerText(), script.decode), Screen()
    places = iter(range(0, script.length, 3))
    place, parted = next(places), 0
    held = script_device(target, script, at_once=2)  # so that text is left for the next cuts
    async with talking_over_a_link(target, WAITING, held=held) as (_, engine):

        async def lose_and_find(event: Event) -> None:
            nonlocal place, parted
            if isinstance(event, AnswerEvent | Earlier):
                decoder.take_event(event)
            assert "�" not in decoder.text.committed + decoder.text.provisional
            there = len(screen.committed)
            if isinstance(event, Committed) and place < there < script.length - 8 and not screen.provisional:
                place = next(places, script.length)
                parted += not script.is_whole(there)
                screen.cuts += 1
                engine.go_offline()
            elif isinstance(event, Provisional) and len(screen.provisional) >= 2:
                engine.go_online()

        await watch(engine, screen, ASKED, WHOLE, lose_and_find)
    assert decoder.text.committed == text
    assert screen.end == Ended(Finish.END_OF_TEXT)
    assert screen.cuts >= 6
    assert screen.most_provisional >= 2
    assert bool(parted) is not text.isascii()
