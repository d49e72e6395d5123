"""A device whose drafter is of another model: it says so once, drafts by look-up, and asks for no more memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from moa_client.chat.messages import event_words
from moa_client.conversation.events import LOOK_UP, DrafterChanged
from moa_client.device.loading import Device
from moa_client.drafting.drafters import MoaDrafter
from moa_client.drafting.settings import DraftingSettings
from moa_client.engine.engine import ClientEngine
from moa_client.link.fleet import connect
from moa_client.link.server import Server
from moa_server.verifier import Target
from moa_shared.drafting import CHAIN, TextGuesser
from moa_shared.drafting.base import Rows
from moa_shared.drafting.estimates import TRIAL_TOKENS, DrafterTrial
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.memory_codec import Codec
from moa_shared.tree import DraftTree

from tests.net.client_device import device, stepper
from tests.net.client_talk import Screen
from tests.net.server_peer import CONTEXT, VOCAB, make_host, plain_text, serving
from tests.support.recording_drafter import RecordingDrafter
from tests.support.tiny_models import tiny_kernel_target, tiny_model

PROMPT = [5, 17, 42, 8, 17, 42]
SETTINGS = AnswerSettings(max_tokens=40, ignore_end_of_text=True)


class WrongDrafter(RecordingDrafter):
    """Always guesses the first token, which the target never chooses here."""

    def begin(self) -> Rows:
        return self.expand([0], [-1])

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Rows:
        logits = np.zeros((len(tokens), VOCAB), np.float32)
        logits[:, 0] = 9.0
        return logits


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_kernel_target(tiny_model(max_position_embeddings=CONTEXT))


def nearly_dropped(target: Target) -> Device:
    trial = DrafterTrial()
    for index in range(TRIAL_TOKENS - 1):
        trial.add(1, 2, 1 if index % 4 == 0 else None)

    def new_drafter() -> MoaDrafter:
        return MoaDrafter(
            WrongDrafter,
            lambda state, sampling: DraftTree((), ()),
            reads_memory=True,
            shape=CHAIN,
            guesser=TextGuesser(),
            trial=trial,
        )

    held = device(target, "chain").with_drafting(drafter=new_drafter(), new_drafter=new_drafter, trial=trial)
    return replace(held, companion=cast("Any", SimpleNamespace(name="small")))


async def test_it_is_said_once_and_the_next_question_needs_no_memory(target: Target) -> None:
    host = make_host(target, stepper=stepper(target, 0))
    async with serving(host) as running, connect([Server(f"127.0.0.1:{running.port}", 5.0, 20.0)]) as link:
        engine = ClientEngine(link, nearly_dropped(target), VOCAB, Codec.INT4, DraftingSettings(drafting="device"))
        try:
            screens = []
            for _ in range(2):
                engine.rewind(0)
                screen = Screen()
                async for event in engine.ask(PROMPT, SETTINGS):
                    screen.take(event)
                screens.append(screen)
                assert screen.committed == plain_text(target, PROMPT, SETTINGS)[0]
        finally:
            await engine.close()
    first, second = ([each for each in screen.notices if isinstance(each, DrafterChanged)] for screen in screens)
    assert [(each.name, each.alone) for each in first] == [(LOOK_UP, "small")]
    assert event_words(first[0]) == (
        "(The drafter guesses worse than look-up (right in 0 of 200 tokens, what the text repeats in 50):"
        " this device drafts by look-up from now on.)"
    )
    assert second == []
    assert engine.device.drafting.choice is not None
    assert (engine.device.drafting.choice.name, engine.device.drafting.choice.alone) == (LOOK_UP, "small")
    assert engine.device.drafting.memory_width == 0
    assert engine.device.identity.drafter_fingerprint == b""
