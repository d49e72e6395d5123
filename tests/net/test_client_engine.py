"""Whole conversations of the real client with a real server: the text is the target's own, whatever drafts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from moa_client.conversation.events import Committed, Ended, Settled
from moa_client.drafting.settings import DraftingSettings
from moa_client.engine.engine import ClientEngine
from moa_client.link.fleet import connect
from moa_client.link.server import Server
from moa_server.verifier import Target
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.memory_codec import Codec
from moa_shared.sampling.settings import Sampling

from tests.net.client_device import (
    DRAFTERS,
    DRAFTERS_OF_BOTH,
    device,
    device_of_both,
    running_drafter,
    stepper,
    stepper_of_both,
)
from tests.net.server_peer import VOCAB, make_host, plain_text, serving

PROMPT = [5, 17, 42, 8, 17, 42]
ROUNDS = DraftingSettings(rounds=4)
STREAMED = DraftingSettings(tree=True)


@asynccontextmanager
async def talking(
    target: Target, name: str = "tree", codec: Codec = Codec.INT4, settings: DraftingSettings = ROUNDS
) -> AsyncIterator[ClientEngine]:
    reused_layers = 1 if name.endswith("N = 1") else 0
    host = make_host(target, stepper=stepper(target, reused_layers))
    async with serving(host) as running, connect([Server(f"127.0.0.1:{running.port}", 5.0, 20.0)]) as link:
        engine = ClientEngine(link, device(target, name), VOCAB, codec, settings)
        try:
            yield engine
        finally:
            await engine.close()


async def ask(engine: ClientEngine, turn: list[int], settings: AnswerSettings) -> list[int]:
    """The committed text of an answer; on a busy machine the link may be lost for a moment, even at its end."""
    events = [event async for event in engine.ask(turn, settings)]
    assert any(isinstance(event, Ended) for event in events)
    events += [event async for event in engine.attend(lambda: not engine.answers.unsettled)]
    return [token for event in events if isinstance(event, Committed | Settled) for token in event.tokens]


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("mode", [ROUNDS, STREAMED], ids=["rounds", "streamed"])
async def test_the_text_is_the_targets_own(
    target: Target, name: str, temperature: float, mode: DraftingSettings
) -> None:
    async with talking(target, name, settings=mode) as engine:
        for seed in range(3 if temperature else 1):
            settings = AnswerSettings(Sampling(temperature, seed=seed), max_tokens=40)
            expected, _ = plain_text(target, PROMPT, settings)
            engine.rewind(0)
            assert await ask(engine, PROMPT, settings) == expected
            assert list(engine.conversation.answer) == expected
            if name in ("lookup", "chain", "tree") and temperature == 0 and mode is not STREAMED:
                assert engine.figures.accepted > 0  # the drafter was at work (streaming, this target outruns it)


@pytest.mark.parametrize("codec", Codec)
async def test_every_codec_gives_the_same_text(target: Target, codec: Codec) -> None:
    settings = AnswerSettings(Sampling(0.7, seed=2), max_tokens=30)
    expected, _ = plain_text(target, PROMPT, settings)
    async with talking(target, "tree of N = 1", codec) as engine:
        assert await ask(engine, PROMPT, settings) == expected


async def test_a_second_turn_reuses_what_the_server_holds(target: Target) -> None:
    settings = AnswerSettings(max_tokens=12)
    async with talking(target) as engine:
        first = await ask(engine, PROMPT, settings)
        second = await ask(engine, [9, 9, 4], settings)
        whole = [*PROMPT, *first, 9, 9, 4]
        assert second == plain_text(target, whole, settings)[0]
        assert engine.conversation.tokens == [*whole, *second]
        # The prompt's rows came with the first answer; the second one brought its own turn's alone.
        assert engine.figures.down_bytes < 200 * (len(second) + 3)


async def test_after_a_reset_the_drafter_knows_the_new_conversation_alone(target: Target) -> None:
    settings = AnswerSettings(max_tokens=12)
    async with talking(target, "chain") as engine:
        await ask(engine, PROMPT, settings)
        accepted = engine.figures.accepted
        engine.rewind(0)
        await ask(engine, [9, 9, 4], settings)
        engine.rewind(0)
        await ask(engine, PROMPT, settings)
        assert engine.figures.accepted == accepted
        drafter = running_drafter(engine)
        assert drafter._draft.state.tokens == engine.conversation.tokens[: len(drafter._draft.state.tokens)]


@pytest.mark.parametrize("before", ["tree", "tree of N = 1"])
async def test_another_drafter_in_the_middle_of_a_conversation_changes_no_word(target: Target, before: str) -> None:
    settings = AnswerSettings(Sampling(0.8, seed=4), max_tokens=24)
    after = "tree of N = 1" if before == "tree" else "tree"
    host = make_host(target, stepper=stepper_of_both(target), drafters=DRAFTERS_OF_BOTH)
    async with serving(host) as running, connect([Server(f"127.0.0.1:{running.port}", 5.0, 20.0)]) as link:
        engine = ClientEngine(link, device_of_both(target, before), VOCAB, Codec.INT4, STREAMED)
        try:
            first = await ask(engine, PROMPT, settings)
            engine.own.next = device_of_both(target, after)
            second = await ask(engine, [9, 9, 4], settings)
            engine.own.next = device_of_both(target, before)
            third = await ask(engine, [11, 3], settings)
            rtt_ms, steps = engine.availability.monitor.rtt_ms, engine.own.drafting.online.window.step_ms.samples
        finally:
            await engine.close()
    text: list[int] = []
    for turn, answer in ((PROMPT, first), ([9, 9, 4], second), ([11, 3], third)):
        text += turn
        assert answer == plain_text(target, text, settings)[0]
        text += answer
    assert rtt_ms is not None
    assert steps
