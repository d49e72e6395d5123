"""Converse over a real server: rounds of drafts, streamed drafts, memory, resume."""

import random
from collections.abc import Sequence

import grpc.aio
import numpy as np
import numpy.typing as npt
import pytest
from moa.v1 import moa_pb2 as pb
from moa_server.app import RunningServer
from moa_server.verifier import Target
from moa_shared.protocol.finish_rule import AnswerSettings, Finish
from moa_shared.protocol.prefix_hash import PrefixHashes
from moa_shared.sampling.settings import Sampling

from tests.net.server_peer import (
    STATE_LAYER,
    VOCAB,
    Peer,
    make_host,
    plain_text,
    row_of,
    serving,
    toy_source,
    until,
)

PROMPT = [5, 17, 33, 2, 64]
GREEDY = AnswerSettings(max_tokens=24, ignore_end_of_text=True)
SAMPLED = AnswerSettings(Sampling(temperature=0.9, top_p=0.95, seed=11), max_tokens=24, ignore_end_of_text=True)


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


async def test_the_state_for_reused_layers_is_a_plane_of_its_own(channel: grpc.aio.Channel, target: Target) -> None:
    peer = Peer(channel)
    await peer.open(reused_state=True)
    await peer.ask(PROMPT, GREEDY)
    await answer_in_rounds(peer, plain_text(target, PROMPT, GREEDY)[0], random.Random(5), trees=True)
    stop = len(peer.tokens) - 1
    held = await peer.rows(stop, pb.PLANE_REUSED_STATE)
    await peer.rows(stop)
    state = target.forward(target.new_cache(), peer.tokens, want_state_layer=STATE_LAYER).state
    assert state is not None
    for position in range(stop):
        assert np.abs(row_of(held[position], position, target.hidden_size) - state[position]).max() < 0.05


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
    held = list(peer.tokens)
    again = Peer(channel)
    again.append(held)
    ask = again.ask_message([], SAMPLED, answer_start=len(PROMPT))
    again.tokens, again.hashes = [], PrefixHashes()
    resumed = await again.open(
        tokens=held, resume_token=opened.resume_token, run_ahead=run_ahead, ask=ask, memory_from=len(PROMPT) - 2
    )
    assert resumed.resume_token == opened.resume_token
    assert resumed.cached_tokens >= len(PROMPT)
    while not again.verdicts or again.verdicts[-1].finish == pb.FINISH_UNSPECIFIED:
        await again.verdict()
        if not run_ahead:
            await again.draft([])
    assert again.tokens[len(PROMPT) :] == expected
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
    async with (
        serving(make_host(target, draft_nodes=8)) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        peer = Peer(channel)
        peer.append(PROMPT)
        ask = peer.ask_message([], how, answer_start=len(PROMPT))
        alone = [*expected[:100], (expected[100] + 1) % VOCAB, *[3] * 30]
        ask.provisional.CopyFrom(
            pb.Draft(epoch=1, base=len(PROMPT), prefix_hash=peer.hashes.short_at(len(PROMPT)), tokens=alone)
        )
        peer.tokens, peer.hashes = [], PrefixHashes()
        await peer.open(tokens=PROMPT, ask=ask, run_ahead=True)
        verdict = await peer.verdict()
        while verdict.finish == pb.FINISH_UNSPECIFIED:
            await peer.send(ack=pb.Ack(committed=len(peer.tokens)))
            verdict = await peer.verdict()
    assert peer.tokens[len(PROMPT) :] == expected
    assert sum(verdict.accepted for verdict in peer.verdicts) == 8 * 11 + 1  # each time with the bonus token
    assert sum(verdict.drafted for verdict in peer.verdicts) == 8 * 12
