"""Answers of a real server: Converse in rounds and streamed, memory, resume; the server's own drafts; and Generate."""

import asyncio
import random
import re
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

import grpc.aio
import numpy as np
import numpy.typing as npt
import pytest
from moa.v1 import moa_pb2 as pb
from moa.v1 import moa_pb2_grpc
from moa_server.app import RunningServer
from moa_server.drafting.draft_decision import MemorySource, OwnDrafter
from moa_server.drafting.session_drafter import ROWS_TOGETHER
from moa_server.engine.stepper import Stepper
from moa_server.verifier import Request, Target
from moa_shared.drafting.drafts import Rows
from moa_shared.protocol.handshake_checks import PROTOCOL_VERSION, error_from_rpc
from moa_shared.protocol.messages import AnswerSettings, Finish, Plane
from moa_shared.protocol.protobuf_messages import settings_to_proto
from moa_shared.sampling.scores import log_softmax
from moa_shared.sampling.settings import Constraint, ConstraintKind, Sampling, WantedChances
from structlog.testing import capture_logs

from tests.net.server_peer import (
    CONTEXT,
    DRAFTER,
    END_OF_TEXT,
    GREEDY,
    IDENTITY,
    PROMPT,
    SAMPLED,
    VOCAB,
    Peer,
    channel_to,
    generate,
    make_host,
    plain_text,
    row_of,
    serving,
    toy_source,
    until,
)
from tests.support.counted import RecordingDrafter
from tests.support.toy_forms import FIRST, ToyForms


async def answer_in_rounds(peer: Peer, known: Sequence[int], rng: random.Random, *, trees: bool) -> Finish:
    """Drafts what the answer will be, with errors, until it ends."""
    verdict = await peer.verdict()
    prompt = verdict.base
    while verdict.finish == pb.FINISH_UNSPECIFIED:
        done = len(peer.tokens) - prompt
        guess = [token if rng.random() < 0.7 else rng.randrange(VOCAB) for token in known[done : done + 4]]
        if trees and guess:  # a wrong first child beside the right one, and a wrong leaf below that
            wrong = (guess[0] + 1) % VOCAB
            await peer.draft([wrong, *guess, wrong], [-1, -1, *range(1, len(guess)), 0])
        else:
            await peer.draft(guess)
        verdict = await peer.verdict()
    return Finish(verdict.finish)


@pytest.mark.parametrize("settings", [GREEDY, SAMPLED])
@pytest.mark.parametrize("trees", [False, True])
async def test_rounds_of_drafts_give_the_target_s_text(
    channel: grpc.aio.Channel, target: Target, settings: AnswerSettings, trees: bool
) -> None:
    expected, finish = plain_text(target, PROMPT, settings)
    peer = Peer(channel)
    await peer.open()
    await peer.ask(PROMPT, settings)
    assert await answer_in_rounds(peer, expected, random.Random(1), trees=trees) is finish
    assert peer.tokens[len(PROMPT) :] == expected
    assert len(peer.verdicts) < len(expected)  # drafts were accepted
    assert sum(verdict.accepted for verdict in peer.verdicts) > 0
    await peer.bye()


def expected_rows(target: Target, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
    cache = target.new_cache()
    target.forward(cache, tokens)
    return toy_source(target).encode(cache.lsa_input(0, len(tokens)))


@pytest.mark.parametrize(("codec", "error"), [(pb.CODEC_BF16, 0.01), (pb.CODEC_INT8, 0.03), (pb.CODEC_INT4, 0.3)])
async def test_memory_rows_are_those_of_the_verified_tokens(
    channel: grpc.aio.Channel, target: Target, codec: pb.Codec, error: float
) -> None:
    peer = Peer(channel)
    opened = await peer.open(memory=False, codecs=[codec])
    assert opened.codec == codec
    await peer.ask(PROMPT, GREEDY)
    await answer_in_rounds(peer, plain_text(target, PROMPT, GREEDY)[0], random.Random(4), trees=True)
    stop = len(peer.tokens) - 1  # the newest token is not in the cache
    held = await peer.rows(stop)
    expected = expected_rows(target, peer.tokens)
    for position in range(stop):
        assert held[position].codec == codec
        assert np.abs(row_of(held[position], position) - expected[position]).max() < error
    assert sum(frame.count for frame in peer.memory) == stop  # each row once


@pytest.mark.parametrize("run_ahead", [False, True])
async def test_a_resume_continues_without_reading_again(
    server: RunningServer, channel: grpc.aio.Channel, target: Target, run_ahead: bool
) -> None:
    expected, finish = plain_text(target, PROMPT, SAMPLED)
    peer = Peer(channel)
    opened = await peer.open(run_ahead=run_ahead)
    await peer.ask(PROMPT, SAMPLED)
    await peer.verdict()
    peer.call.cancel()
    await until(lambda: server.host.services.registry.detached == 1)
    again = Peer(channel)
    resumed = await again.resume(
        list(peer.tokens), SAMPLED, len(PROMPT), resume_token=opened.resume_token, run_ahead=run_ahead,
        memory_from=len(PROMPT) - 2,
    )  # fmt: skip
    assert resumed.resume_token == opened.resume_token
    assert resumed.cached_tokens >= len(PROMPT)
    assert await again.finish(in_rounds=not run_ahead) == expected
    assert Finish(again.verdicts[-1].finish) is finish
    assert {verdict.ask for verdict in peer.verdicts + again.verdicts} == {1}
    memory = expected_rows(target, again.tokens)
    lacked = range(len(PROMPT) - 2, len(again.tokens) - 1)
    assert sorted(await again.rows(lacked.stop, start=lacked.start)) == [*lacked]
    for frame in again.memory:
        assert np.abs(row_of(frame, frame.start) - memory[frame.start]).max() < 0.01


async def test_a_long_standalone_run_is_verified_a_few_nodes_at_a_time(target: Target) -> None:
    how = AnswerSettings(max_tokens=140, ignore_end_of_text=True)
    expected, _ = plain_text(target, PROMPT, how)
    alone = [*expected[:100], (expected[100] + 1) % VOCAB, *[3] * 30]
    async with serving(make_host(target, draft_nodes=8)) as server, channel_to(server) as channel:
        peer = Peer(channel)
        await peer.resume(PROMPT, how, len(PROMPT), alone, run_ahead=True)
        while (await peer.verdict()).finish == pb.FINISH_UNSPECIFIED:
            await peer.send(ack=pb.Ack(committed=len(peer.tokens)))
    assert peer.tokens[len(PROMPT) :] == expected
    assert sum(verdict.accepted for verdict in peer.verdicts) == 8 * 11 + 1  # each time with the bonus token
    assert sum(verdict.drafted for verdict in peer.verdicts) == 8 * 12


ASKED = [5, 9, 11, 40]
LONGER = AnswerSettings(max_tokens=30, ignore_end_of_text=True)
WARM = AnswerSettings(Sampling(1.0, seed=7), max_tokens=30, ignore_end_of_text=True)


class TargetDrafter(RecordingDrafter):
    """Guesses with the target itself, so that it is always right.

    `sharpness`: a factor of the logits; 1 is
    right in sampled text, more in greedy text of nearly random weights.
    """

    def __init__(self, target: Target, sharpness: float = 8.0) -> None:
        super().__init__()
        self.target = target
        self.sharpness = sharpness
        self._nodes: list[list[int]] = []  # paths

    def extend(self, tokens: Sequence[int]) -> None:
        super().extend(tokens)
        self._nodes = []

    def begin(self) -> Rows:
        newest = len(self.tokens) - 2  # whose rows exist; memory rows come several at a time
        assert max(self.states) == newest
        assert newest - ROWS_TOGETHER[Plane.MEMORY] < max(self.memory, default=-1) <= newest
        self._nodes = []
        return self._logits([])[None]

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Rows:
        for token, parent in zip(tokens, parents, strict=True):
            self._nodes.append([*(self._nodes[parent] if parent >= 0 else []), token])
        return np.stack([self._logits(path) for path in self._nodes[-len(tokens) :]])

    def _logits(self, path: Sequence[int]) -> Rows:
        text = [*self.tokens, *path]
        cache = self.target.new_cache()
        output = self.target.forward_all([Request(cache, text, None, [len(text) - 1])])[0]
        logits: Rows = self.sharpness * output.logits[0]
        return logits


class FailingDrafter(TargetDrafter):
    """Fails in its third draft."""

    begun = 0

    def begin(self) -> Rows:
        self.begun += 1
        if self.begun == 3:
            raise RuntimeError("the drafter is on fire")
        return super().begin()


def drafting_source(target: Target, kind: type[TargetDrafter] = TargetDrafter, sharpness: float = 8.0) -> MemorySource:
    """A source of memory rows whose drafter is of that kind."""
    return replace(toy_source(target), drafter=OwnDrafter(lambda: kind(target, sharpness), token_bytes=100))


def drafting(
    target: Target, kind: type[TargetDrafter] = TargetDrafter, sharpness: float = 8.0, **settings: Any
) -> AbstractAsyncContextManager[RunningServer]:
    stepper = Stepper(target, [drafting_source(target, kind, sharpness=sharpness)])
    return serving(make_host(target, stepper=stepper, draft_nodes=6, **settings))


@pytest.mark.parametrize(("settings", "sharpness"), [(LONGER, 8.0), (WARM, 1.0)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("memory", [True, False])
async def test_the_server_drafts_for_a_device_that_sends_nothing(
    int8_target: Target, settings: AnswerSettings, sharpness: float, memory: bool
) -> None:
    async with drafting(int8_target, sharpness=sharpness) as running, channel_to(running) as channel:
        peer = Peer(channel)
        await peer.open(memory=memory, reused_state=memory, run_ahead=True, server_drafts=True)
        assert await peer.answer(ASKED, settings) == plain_text(int8_target, ASKED, settings)[0]
    drafted = peer.verdicts[1:]  # the first one ends the prompt
    assert len(drafted) < 15
    for verdict in drafted:
        assert verdict.drafted == verdict.server_drafted > 0
        assert verdict.accepted == verdict.server_accepted
    assert sum(verdict.server_accepted for verdict in drafted) > 15


async def test_what_the_device_guesses_is_the_devices(int8_target: Target) -> None:
    """Its nodes come first in the tree that both make; the server adds others."""
    expected = plain_text(int8_target, ASKED, LONGER)[0]
    async with drafting(int8_target) as running, channel_to(running) as channel:
        peer = Peer(channel)
        await peer.open(server_drafts=True)  # it does not run ahead: each forward waits for a draft
        await peer.ask(ASKED, LONGER)
        while not (await peer.verdict()).finish:
            done = len(peer.tokens) - len(ASKED)
            await peer.draft(expected[done : done + 1])
    assert peer.tokens[len(ASKED) :] == expected
    both = peer.verdicts[1:-1]
    assert both
    for verdict in both:
        assert (verdict.drafted - verdict.server_drafted, verdict.accepted - verdict.server_accepted) == (1, 1)
    assert sum(verdict.server_accepted for verdict in both) > 0


@pytest.mark.parametrize(("policy", "wanted", "server_drafts", "device_drafts"), [
    ("auto", True, True, True), ("auto", False, False, True), ("server", True, True, False),
    ("device", True, False, True), ("off", True, False, False),
])  # fmt: skip
async def test_who_drafts_is_what_both_ends_allow(
    int8_target: Target, policy: str, wanted: bool, server_drafts: bool, device_drafts: bool
) -> None:
    expected = plain_text(int8_target, ASKED, LONGER)[0]
    async with drafting(int8_target, drafting=policy) as running, channel_to(running) as channel:
        peer = Peer(channel)
        # Where its drafts count, each forward waits for one.
        await peer.open(run_ahead=not device_drafts, server_drafts=wanted)
        await peer.ask(ASKED, LONGER)
        while not (await peer.verdict()).finish:
            done = len(peer.tokens) - len(ASKED)
            await peer.draft(expected[done : done + 4])
    assert peer.tokens[len(ASKED) :] == expected
    by_server = sum(verdict.server_drafted for verdict in peer.verdicts)
    by_device = sum(verdict.drafted - verdict.server_drafted + verdict.stale_nodes for verdict in peer.verdicts)
    assert (by_server > 0) is server_drafts
    assert (by_device > 0) is device_drafts


async def test_plain_generation_may_have_the_servers_drafts(int8_target: Target) -> None:
    expected = plain_text(int8_target, ASKED, LONGER)[0]
    async with drafting(int8_target) as running, channel_to(running) as channel:
        stub = moa_pb2_grpc.MoaStub(channel)
        for wanted in (False, True):
            request = pb.GenerateRequest(tokens=ASKED, sampling=settings_to_proto(LONGER), server_drafts=wanted)
            pieces = [list(response.tokens) async for response in stub.Generate(request)]
            assert [token for piece in pieces for token in piece] == expected
            assert max(map(len, pieces)) > 1 or not wanted


async def test_a_drafter_that_fails_costs_only_the_drafts(int8_target: Target) -> None:
    expected = plain_text(int8_target, ASKED, LONGER)[0]
    with capture_logs() as logs:
        async with drafting(int8_target, FailingDrafter) as running, channel_to(running) as channel:
            first, second = Peer(channel), Peer(channel)
            for peer in (first, second):
                await peer.open(run_ahead=True, server_drafts=True)
            both = await asyncio.gather(first.answer(ASKED, LONGER), second.answer(ASKED, LONGER))
            assert list(both) == [expected, expected]
            failed = sum("drafter failed" in line["event"] for line in logs)
            assert failed == 2
            third = Peer(channel)
            await third.open(run_ahead=True, server_drafts=False)
            assert await third.answer(ASKED, LONGER) == expected
    for peer in (first, second):
        by_server = [verdict.server_drafted for verdict in peer.verdicts]
        assert any(by_server)
        assert not any(by_server[6:])


FORM = Constraint(ConstraintKind.REGEX, r"name: [a-z]{4}, colour: (red|green), size: [0-9]{3}")
FORMED = AnswerSettings(Sampling(1.0, seed=7, constraint=FORM), max_tokens=60)


async def test_what_a_form_forces_is_drafted_only_where_drafts_of_the_server_are_wanted(int8_target: Target) -> None:
    async def ask(*, wanted: bool, has_drafter: bool) -> tuple[list[int], list[pb.Verdict]]:
        """An answer, and the verdicts that brought it."""
        stepper = Stepper(int8_target, [drafting_source(int8_target, sharpness=1.0)]) if has_drafter else None
        host = make_host(int8_target, stepper=stepper, forms=ToyForms(END_OF_TEXT).as_compiler(), draft_nodes=6)
        async with serving(host) as running, channel_to(running) as channel:
            peer = Peer(channel)
            await peer.open(run_ahead=True, server_drafts=wanted)
            return await peer.answer(ASKED, FORMED), peer.verdicts

    text, plain = await ask(wanted=False, has_drafter=False)
    assert re.fullmatch(FORM.text, "".join(chr(FIRST + token) for token in text if token != END_OF_TEXT))
    assert not any(each.drafted or each.server_drafted for each in plain)
    forced, with_forced = await ask(wanted=True, has_drafter=False)
    assert forced == text
    assert sum(each.server_accepted for each in with_forced) == sum(each.server_drafted for each in with_forced)
    by_form = sum(each.accepted for each in with_forced)
    assert by_form > len(text) / 2
    drafted, with_drafter = await ask(wanted=True, has_drafter=True)
    assert drafted == text
    # A drafter that is always right knows the rest too, once the form has left it no other tokens.
    assert sum(each.accepted for each in with_drafter) > max(by_form, 0.8 * len(text))


async def test_describe_says_what_is_served(channel: grpc.aio.Channel) -> None:
    said = await moa_pb2_grpc.MoaStub(channel).Describe(pb.DescribeRequest())
    assert (said.protocol_version, said.identity, said.limits.context_tokens) == (PROTOCOL_VERSION, IDENTITY, CONTEXT)
    assert (list(said.codecs), list(said.drafters)) == ([pb.CODEC_BF16, pb.CODEC_INT8, pb.CODEC_INT4], [DRAFTER])
    assert said.execution == pb.Execution(level="float32", exact=False, details="kernels")


async def given(channel: grpc.aio.Channel, tokens: list[int], **more: Any) -> list[pb.TokenChances]:
    """What the server tells of all tokens but the first."""
    sampling = settings_to_proto(AnswerSettings(chances=WantedChances(2)))
    told: list[pb.TokenChances] = []
    back: list[int] = []
    request = pb.GenerateRequest(**{"tokens": tokens, "sampling": sampling, "given": len(tokens) - 1, **more})
    async for response in moa_pb2_grpc.MoaStub(channel).Generate(request):
        told += response.chances
        back += response.tokens
    assert back == tokens[1:]
    return told


async def test_a_text_s_own_chances_are_those_of_all_its_positions(channel: grpc.aio.Channel, target: Target) -> None:
    """Whether or not the server has read such a text before; end-of-text in it ends nothing."""
    text = [(11 * index) % VOCAB for index in range(CONTEXT - 1)] + [END_OF_TEXT]
    rows = log_softmax(target.forward(target.new_cache(), text[:-1]).logits)
    await generate(channel, text[:-1], AnswerSettings(max_tokens=1))
    for _ in range(2):
        told = await given(channel, text)
        own = [float(row[token]) for row, token in zip(rows, text[1:], strict=True)]
        assert [each.chosen for each in told] == pytest.approx(own, abs=1e-4)
        assert [each.tokens[0] for each in told] == rows.argmax(-1).tolist()


@pytest.mark.parametrize(("wrong", "words"), [
    ({"given": 3}, "3 of 3 tokens are given as the answer. Leave at least the first one out."),
    ({"sampling": pb.Sampling()}, "A given answer comes back with the chances of its tokens, and needs no form."),
    ({"tokens": [1, 2, VOCAB]}, "Token 1 is 97, outside the vocabulary (0 to 96)."),
    ({"tokens": [1] * (CONTEXT + 1), "given": 1}, "The request has 201 tokens, at most 200 fit."),
])  # fmt: skip
async def test_a_given_text_that_cannot_be_one_is_refused(
    channel: grpc.aio.Channel, wrong: dict[str, Any], words: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await given(channel, **{"tokens": [1, 2, 3], **wrong})
    assert words in str(error_from_rpc(refused.value))
