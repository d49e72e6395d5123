"""Answers cut anywhere, often, and in any text: in the end they are those of an undisturbed run, to the token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from moa_client.conversation.answer_decoder import AnswerDecoder
from moa_client.conversation.answer_text import AnswerText
from moa_client.conversation.events import (
    AnswerEvent,
    Committed,
    Earlier,
    Ended,
    Event,
    LinkChanged,
    LinkState,
    Provisional,
)
from moa_client.device.loading import Device
from moa_client.drafting.settings import DraftingSettings, StandaloneRule
from moa_server.verifier import Request, TargetOutput
from moa_server.verifier.kernel_target import KernelTarget
from moa_shared.drafting import Growth
from moa_shared.protocol.finish_rule import AnswerSettings, Finish
from moa_shared.sampling.settings import Sampling
from moa_shared.tree import DraftTree

from netsim import LinkHandle
from tests.net.client_device import device
from tests.net.client_talk import PROMPT, Screen, talking_over_a_link, watch
from tests.net.server_peer import CONTEXT, END_OF_TEXT, plain_text, tiny_target

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


# ---------------------------------------------------------------- text

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
                decoder.take(event)
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


async def test_an_answer_that_is_left_in_the_middle_of_a_character_shows_no_part_of_it() -> None:
    script = Script(OTHER)
    target = ScriptTarget(script)
    parted = 0
    decoder, screen = AnswerDecoder(AnswerText(), script.decode), Screen()
    settings = DraftingSettings(standalone=StandaloneRule("never", end_ms=60_000.0, leave_ms=0.0), drafting="off")
    async with talking_over_a_link(target, settings, held=script_device(target, script)) as (_, engine):

        async def cut(event: Event) -> None:
            nonlocal parted
            if isinstance(event, AnswerEvent | Earlier):
                decoder.take(event)
            # On a busy machine several tokens come at once, and any place may be left out.
            there = len(screen.committed)
            if not screen.cuts and not script.is_whole(there):
                parted = there
                screen.cuts += 1
                engine.go_offline()

        await watch(engine, screen, ASKED, WHOLE, cut)
        assert screen.end == Ended(Finish.UNFINISHED, provisional=True)
        assert decoder.text.committed + decoder.text.provisional == script.decode(range(1, parted + 1)).rstrip("�")
        engine.go_online()
        async for event in engine.settle():
            if isinstance(event, AnswerEvent | Earlier):
                decoder.take(event)
    assert decoder.text.committed == OTHER
