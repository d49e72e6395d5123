"""A companion on the device: its text in cuts and before any server was there, and what servers make of it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from inline_snapshot import snapshot
from moa.v1 import moa_pb2 as pb
from moa_client.conversation.events import Committed, Corrected, Ended, Event, LinkState, ServerChanged, Settled
from moa_client.device.loading import Device
from moa_client.drafting.companion import CompanionDrafter, CompanionPair
from moa_client.drafting.drafters import ClientDrafter
from moa_client.drafting.settings import DraftingSettings, StandaloneRule
from moa_client.engine.engine import ClientEngine
from moa_client.link.fleet import connect
from moa_client.link.server import Server
from moa_kernels import F32
from moa_server.running.running_server import RunningServer
from moa_server.verifier.kernel_target import KernelTarget
from moa_shared.drafter.companion import Companion
from moa_shared.drafting import CHAIN, draft_chain
from moa_shared.errors import MismatchError
from moa_shared.models.network.network import Network
from moa_shared.protocol.finish_rule import AnswerSettings, Finish
from moa_shared.protocol.memory_codec import Codec
from moa_shared.sampling.settings import Sampling

from tests.net.client_device import device
from tests.net.client_talk import PROMPT, SETTINGS, Screen, talking, talking_over_a_link, watch
from tests.net.server_peer import CONTEXT, IDENTITY, VOCAB, plain_text
from tests.support.messages import steady
from tests.support.tiny_models import ModelWeights, tiny_model

WRITING = DraftingSettings(standalone=StandaloneRule("auto"))
ITSELF, ANOTHER = 3, 4  # seeds of the tiny target and of another model


def companion(seed: int) -> Companion:
    """A tiny model: the target itself, or one that rarely agrees with it."""
    model = tiny_model(seed=seed, max_position_embeddings=CONTEXT)
    files = SimpleNamespace(target_id="small", fingerprint="", config=model.config)
    network = Network(ModelWeights(model), model.config, plain=True)
    return Companion(cast("Any", files), cast("Any", None), network, VOCAB, F32)


def with_companion(target: KernelTarget, seed: int, *, beside: str = "none", drafts: bool = True) -> Device:
    """A device with a companion, alone or beside another drafter."""
    drafter = CompanionDrafter(
        companion(seed), lambda state, sampling: draft_chain(state, 4, sampling), shape=CHAIN, drafts=drafts
    )
    held = device(target, beside)
    online: ClientDrafter | None = held.drafting.drafter
    return held.with_drafting(drafter=drafter if online is None else CompanionPair(online, drafter))


@pytest.mark.parametrize("beside", ["none", "chain", "tree of N = 1", "lookup"])
async def test_a_companion_that_says_what_the_target_says_has_all_its_words_kept(
    target: KernelTarget, beside: str
) -> None:
    expected, _ = plain_text(target, PROMPT, SETTINGS)
    screen = Screen()
    corrected: list[Event] = []
    alone = 20
    held = with_companion(target, ITSELF, beside=beside)
    async with talking_over_a_link(target, WRITING, held=held) as (link, engine):

        async def cut_and_heal(event: Event) -> None:
            nonlocal alone
            corrected.extend([event] if isinstance(event, Corrected) else [])
            if not screen.cuts and len(screen.committed) > 5:
                screen.cuts += 1
                alone = min(alone, len(expected) - len(screen.committed) - 4)  # on a busy machine less may be left
                await link.cut("both")
            elif len(screen.provisional) == alone:
                await link.heal()

        await watch(engine, screen, on_event=cut_and_heal)
        assert screen.committed == expected
        assert screen.end == Ended(Finish.MAX_TOKENS)
        assert screen.most_provisional >= alone
        assert not corrected
        assert engine.figures.kept >= alone


async def test_a_companion_that_errs_is_corrected_and_the_text_is_the_target_s(target: KernelTarget) -> None:
    expected, _ = plain_text(target, PROMPT, SETTINGS)
    screen = Screen()
    held = with_companion(target, ANOTHER, drafts=False)
    async with talking_over_a_link(target, WRITING, held=held) as (link, engine):

        async def cut_and_heal(event: Event) -> None:
            if not screen.cuts and len(screen.committed) > 5:
                screen.cuts += 1
                await link.cut("both")
            elif len(screen.provisional) == 12:
                await link.heal()

        await watch(engine, screen, on_event=cut_and_heal)
        assert screen.committed == expected
        assert screen.most_provisional >= 12
        withdrawn = engine.answers.withdrawn
        assert withdrawn is not None
        events = engine.keep(lambda _: PROMPT, SETTINGS)
        assert [type(event) for event in events] == [Committed, Ended]
        answer = list(withdrawn.tokens)
        assert answer != expected[: len(answer)]
        assert list(engine.conversation.answer) == answer
        later = Screen()
        await watch(engine, later, [5, 6])
        assert (
            later.committed == plain_text(target, [*PROMPT, *answer, 5, 6], SETTINGS)[0]
        )  # its context is what was kept


async def test_a_companion_begins_an_answer_whose_question_no_server_has_read(
    target: KernelTarget, server: RunningServer
) -> None:
    short = AnswerSettings(Sampling(0.7, seed=4), max_tokens=20, ignore_end_of_text=True)
    screen = Screen()
    async with talking(
        target, f"127.0.0.1:{server.port}", WRITING, held=with_companion(target, ITSELF), offline=True
    ) as engine:
        await watch(engine, screen, settings=short)
        assert screen.end == Ended(Finish.MAX_TOKENS, provisional=True)
        assert not screen.held_back
        engine.go_online()
        [settled] = [event async for event in engine.settle() if isinstance(event, Settled)]
        assert list(settled.tokens) == screen.provisional == plain_text(target, PROMPT, short)[0]
        assert not settled.changed


async def test_who_wants_no_server_has_the_companion_answer_however_sure_it_is(
    target: KernelTarget, server: RunningServer
) -> None:
    screen = Screen()
    careful = DraftingSettings(standalone=StandaloneRule("auto", least_chance=1.0))
    held = replace(with_companion(target, ANOTHER), companion=companion(ANOTHER))
    async with talking(target, f"127.0.0.1:{server.port}", careful, held=held, offline=True) as engine:
        await watch(engine, screen)
        assert screen.end == Ended(Finish.MAX_TOKENS, provisional=True)
        assert not screen.held_back


class Standing:
    """A device with nothing but a companion, and what it takes to continue with a server's model."""

    def __init__(self, target: KernelTarget, *, fits: bool = True) -> None:
        own = with_companion(target, ITSELF)
        own.identity.target_id, own.identity.target_fingerprint = "small", b"s" * 32
        self.device = replace(own, stands_in=True, files=cast("Any", SimpleNamespace(target_id="small")))
        self.fits = fits

    async def adopt(self, served: pb.DescribeResponse, device: Device) -> Device:
        if not self.fits:
            raise MismatchError("small cannot be a companion of tiny: token 5 is 'a' there and 'b' here.")
        identity = pb.Identity()
        identity.CopyFrom(served.identity)
        identity.drafter_fingerprint = b""
        files = cast("Any", SimpleNamespace(target_id=served.identity.target_id))
        return replace(device, stands_in=False, files=files, identity=identity).with_drafting(is_refused=True)


async def test_what_was_written_before_any_server_was_seen_is_continued_by_the_first(
    target: KernelTarget, server: RunningServer
) -> None:
    screen, standing = Screen(), Standing(target)
    address = f"127.0.0.1:{server.port}"
    async with connect([Server(address, 5.0, 20.0)]) as link:
        engine = ClientEngine(link, standing.device, VOCAB, Codec.INT4, WRITING, offline=True, adopt=standing.adopt)

        async def come_online(event: Event) -> None:
            if len(screen.provisional) >= 12:
                engine.go_online()

        await watch(engine, screen, on_event=come_online)
        # A companion so small may have ended the answer before the server was there.
        later = [token async for event in engine.settle() if isinstance(event, Settled) for token in event.tokens]
        await engine.close()
    assert screen.committed + later == plain_text(target, PROMPT, SETTINGS)[0]
    assert engine.device.identity.target_fingerprint == IDENTITY.target_fingerprint
    [notice] = [each for each in screen.notices if isinstance(each, ServerChanged)]
    assert steady(notice.message) == snapshot(
        "127.0.0.1:PORT serves tiny, which continues what small on this device has written."
    )


async def test_a_server_with_another_vocabulary_is_named_once_and_the_companion_writes_on(
    target: KernelTarget, server: RunningServer
) -> None:
    screen, standing = Screen(), Standing(target, fits=False)
    address = f"127.0.0.1:{server.port}"
    async with connect([Server(address, 5.0, 20.0)]) as link:
        engine = ClientEngine(link, standing.device, VOCAB, Codec.INT4, WRITING, adopt=standing.adopt)
        await watch(engine, screen)
        assert screen.end == Ended(Finish.MAX_TOKENS, provisional=True)
        assert screen.provisional == plain_text(target, PROMPT, SETTINGS)[0]
        assert LinkState.GOOD not in screen.states
        assert [each.message for each in screen.notices if isinstance(each, ServerChanged)] == snapshot(
            [
                "small cannot be a companion of tiny: token 5 is 'a' there and 'b' here. Start the client with the server's model and drafter, or connect to another server."
            ]
        )
        await engine.close()
