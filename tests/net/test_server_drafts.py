"""The server's own drafts over the wire: faster, never another text, and never at another's expense."""

import asyncio
import re
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from moa.v1 import moa_pb2 as pb
from moa.v1 import moa_pb2_grpc
from moa_server.app import RunningServer
from moa_server.engine.stepper import Stepper
from moa_server.verifier import Target
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.protobuf_messages import settings_to_proto
from moa_shared.sampling.settings import Constraint, ConstraintKind, Sampling
from structlog.testing import capture_logs

from tests.net.server_drafter import FailingDrafter, TargetDrafter, drafting_source
from tests.net.server_peer import (
    CONTEXT,
    END_OF_TEXT,
    Peer,
    channel_to,
    make_host,
    plain_text,
    serving,
)
from tests.support.tiny_models import tiny_kernel_target, tiny_model
from tests.support.toy_forms import ToyForms, characters_of

PROMPT = [5, 9, 11, 40]
GREEDY = AnswerSettings(max_tokens=30, ignore_end_of_text=True)
WARM = AnswerSettings(Sampling(1.0, seed=7), max_tokens=30, ignore_end_of_text=True)


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_kernel_target(tiny_model(max_position_embeddings=CONTEXT))


def drafting(
    target: Target, kind: type[TargetDrafter] = TargetDrafter, shift: int = 0, sharpness: float = 8.0, **settings: Any
) -> AbstractAsyncContextManager[RunningServer]:
    stepper = Stepper(target, [drafting_source(target, kind, shift, sharpness)])
    return serving(make_host(target, stepper=stepper, **{"draft_nodes": 6, **settings}))


async def answer(peer: Peer, settings: AnswerSettings, prompt: Sequence[int] = PROMPT) -> list[int]:
    """Asks and reads the answer, without drafting."""
    await peer.ask(prompt, settings)
    start = len(peer.tokens)
    while not peer.verdicts or not peer.verdicts[-1].finish:
        await peer.verdict()
    return peer.tokens[start:]


@pytest.mark.parametrize(("settings", "sharpness"), [(GREEDY, 8.0), (WARM, 1.0)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("memory", [True, False])
async def test_the_server_drafts_for_a_device_that_sends_nothing(
    target: Target, settings: AnswerSettings, sharpness: float, memory: bool
) -> None:
    async with drafting(target, sharpness=sharpness) as running, channel_to(running) as channel:
        peer = Peer(channel)
        await peer.open(memory=memory, reused_state=memory, run_ahead=True, server_drafts=True)
        assert await answer(peer, settings) == plain_text(target, PROMPT, settings)[0]
    drafted = peer.verdicts[1:]  # the first one ends the prompt
    assert len(drafted) < 15
    for verdict in drafted:
        assert verdict.drafted == verdict.server_drafted > 0
        assert verdict.accepted == verdict.server_accepted
    assert sum(verdict.server_accepted for verdict in drafted) > 15


async def test_what_the_device_guesses_is_the_devices(target: Target) -> None:
    """Its nodes come first in the tree that both make; the server adds others."""
    expected = plain_text(target, PROMPT, GREEDY)[0]
    async with drafting(target) as running, channel_to(running) as channel:
        peer = Peer(channel)
        await peer.open(server_drafts=True)  # it does not run ahead: each forward waits for a draft
        await peer.ask(PROMPT, GREEDY)
        while not (await peer.verdict()).finish:
            done = len(peer.tokens) - len(PROMPT)
            await peer.draft(expected[done : done + 1])
    assert peer.tokens[len(PROMPT) :] == expected
    both = peer.verdicts[1:-1]
    assert both
    for verdict in both:
        assert verdict.drafted - verdict.server_drafted == 1
        assert verdict.accepted - verdict.server_accepted == 1
    assert sum(verdict.server_accepted for verdict in both) > 0


@pytest.mark.parametrize(
    ("policy", "wanted", "server_drafts", "device_drafts"),
    [
        ("auto", True, True, True),
        ("auto", False, False, True),
        ("server", True, True, False),
        ("device", True, False, True),
        ("off", True, False, False),
    ],
)
async def test_who_drafts_is_what_both_ends_allow(
    target: Target, policy: str, wanted: bool, server_drafts: bool, device_drafts: bool
) -> None:
    expected = plain_text(target, PROMPT, GREEDY)[0]
    async with drafting(target, drafting=policy) as running, channel_to(running) as channel:
        peer = Peer(channel)
        await peer.open(run_ahead=True, server_drafts=wanted)
        # the draft hangs below the prompt's end, so it is there when the prompt is read
        ask = peer.ask_message(PROMPT, GREEDY)
        await peer.send(ask=ask)
        await peer.draft(expected[:4])
        while not (await peer.verdict()).finish:
            pass
    assert peer.tokens[len(PROMPT) :] == expected
    by_server = sum(verdict.server_drafted for verdict in peer.verdicts)
    by_device = sum(verdict.drafted - verdict.server_drafted + verdict.stale_nodes for verdict in peer.verdicts)
    assert (by_server > 0) is server_drafts
    assert (by_device > 0) is device_drafts


async def test_plain_generation_may_have_the_servers_drafts(target: Target) -> None:
    expected = plain_text(target, PROMPT, GREEDY)[0]
    async with drafting(target) as running, channel_to(running) as channel:
        stub = moa_pb2_grpc.MoaStub(channel)
        for wanted in (False, True):
            request = pb.GenerateRequest(tokens=PROMPT, sampling=settings_to_proto(GREEDY), server_drafts=wanted)
            pieces = [list(response.tokens) async for response in stub.Generate(request)]
            assert [token for piece in pieces for token in piece] == expected
            assert (max(map(len, pieces)) > 1) is wanted


async def test_a_drafter_that_fails_costs_only_the_drafts(target: Target) -> None:
    expected = plain_text(target, PROMPT, GREEDY)[0]
    with capture_logs() as logs:
        async with drafting(target, FailingDrafter) as running, channel_to(running) as channel:
            first, second = Peer(channel), Peer(channel)
            for peer in (first, second):
                await peer.open(run_ahead=True, server_drafts=True)
            both = await asyncio.gather(answer(first, GREEDY), answer(second, GREEDY))
            assert list(both) == [expected, expected]
            failed = sum("drafter failed" in line["event"] for line in logs)
            assert failed == 2
            third = Peer(channel)
            await third.open(run_ahead=True, server_drafts=False)
            assert await answer(third, GREEDY) == expected
    for peer in (first, second):
        by_server = [verdict.server_drafted for verdict in peer.verdicts]
        assert any(by_server)
        assert not any(by_server[6:])


FORM = Constraint(ConstraintKind.REGEX, r"name: [a-z]{4}, colour: (red|green), size: [0-9]{3}")
SETTINGS = AnswerSettings(Sampling(1.0, seed=7, constraint=FORM), max_tokens=60)


async def asked(target: Target, *, wanted: bool, has_drafter: bool) -> tuple[list[int], list[pb.Verdict]]:
    """An answer, and the verdicts that brought it."""
    stepper = Stepper(target, [drafting_source(target, sharpness=1.0)]) if has_drafter else None
    host = make_host(target, stepper=stepper, forms=ToyForms(END_OF_TEXT).as_compiler(), draft_nodes=6)
    async with serving(host) as running, channel_to(running) as channel:
        peer = Peer(channel)
        await peer.open(run_ahead=True, server_drafts=wanted)
        await peer.ask(PROMPT, SETTINGS)
        while not peer.verdicts or not peer.verdicts[-1].finish:
            await peer.verdict()
        return peer.tokens[len(PROMPT) :], peer.verdicts


async def test_what_a_form_forces_is_drafted_only_where_drafts_of_the_server_are_wanted(target: Target) -> None:
    text, plain = await asked(target, wanted=False, has_drafter=False)
    assert re.fullmatch(FORM.text, characters_of(text, END_OF_TEXT))
    assert not any(each.drafted or each.server_drafted for each in plain)
    forced, with_forced = await asked(target, wanted=True, has_drafter=False)
    assert forced == text
    assert sum(each.server_accepted for each in with_forced) == sum(each.server_drafted for each in with_forced)
    by_form = sum(each.accepted for each in with_forced)
    assert by_form > len(text) / 2
    drafted, with_drafter = await asked(target, wanted=True, has_drafter=True)
    assert drafted == text
    # A drafter that is always right knows the rest too, once the form has left it no other tokens.
    assert sum(each.accepted for each in with_drafter) > max(by_form, 0.8 * len(text))
