"""Converse over a real server: rounds of drafts, streamed drafts, memory, resume."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import grpc.aio
import numpy as np
import numpy.typing as npt
import pytest
from moa.v1 import moa_pb2 as pb
from moa_server.access.caller import Caller
from moa_server.engine.planning.schedule import Schedule
from moa_server.running.running_server import RunningServer
from moa_server.verifier import Target
from moa_shared.protocol.finish_rule import AnswerSettings, Finish
from moa_shared.protocol.prefix_hash import PrefixHashes
from moa_shared.sampling.settings import Sampling

from tests.net.server_peer import (
    CONTEXT,
    END_OF_TEXT,
    IDENTITY,
    ROW_WIDTH,
    STATE_LAYER,
    VOCAB,
    Peer,
    channel_to,
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


async def test_without_drafts_a_synchronous_server_waits(channel: grpc.aio.Channel) -> None:
    peer = Peer(channel)
    await peer.open()
    await peer.ask(PROMPT, GREEDY)
    first = await peer.verdict()
    assert len(first.tokens) == 1
    await peer.send(beat=pb.Beat(stamp=7))
    frame = await peer.receive()
    while frame is not None and frame.WhichOneof("frame") == "memory":
        frame = await peer.receive()
    assert frame is not None
    assert frame.WhichOneof("frame") == "beat"
    assert (frame.beat.stamp, frame.beat.reply) == (7, True)
    assert len(peer.verdicts) == 1
    await peer.draft([])  # nothing to guess: a plain step
    assert len((await peer.verdict()).tokens) == 1


async def test_a_server_that_runs_ahead_stops_at_its_bound(target: Target) -> None:
    settings = AnswerSettings(max_tokens=40, ignore_end_of_text=True)
    async with (
        serving(make_host(target, run_ahead_tokens=16)) as running,
        grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel,
    ):
        peer = Peer(channel)
        await peer.open(run_ahead=True)
        await peer.ask(PROMPT, settings)
        while len(peer.tokens) < len(PROMPT) + 16:  # a slow stream may merge verdicts
            await peer.verdict()
        (live,) = running.host.services.registry.live_sessions
        assert live.session.plan_step() is None
        while peer.verdicts[-1].finish == pb.FINISH_UNSPECIFIED:
            await peer.send(ack=pb.Ack(committed=len(peer.tokens)))
            await peer.verdict()
        assert peer.tokens[len(PROMPT) :] == plain_text(target, PROMPT, settings)[0]


async def test_a_client_that_began_on_another_execution_learns_of_this_one(channel: grpc.aio.Channel) -> None:
    same = await Peer(channel).open()
    assert not same.HasField("new_execution")
    other = await Peer(channel).open(identity=pb.Identity(execution=b"x" * 32))
    assert other.new_execution == pb.NewExecution(
        fingerprint=IDENTITY.execution,
        execution=pb.Execution(level="float32", details="kernels"),
        end_of_text=[END_OF_TEXT],
    )


async def test_a_question_that_cannot_be_answered_takes_nobodys_place(target: Target) -> None:
    async with (
        serving(make_host(target, max_sessions=2)) as running,
        grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel,
    ):
        waiting = Peer(channel)
        await waiting.open(tokens=PROMPT)
        waiting.call.cancel()
        await Peer(channel).open()
        registry = running.host.services.registry
        await until(lambda: registry.detached > 0)
        bad = [pb.Ask(tokens=[1]), pb.Ask(id=1), pb.Ask(id=1, tokens=[VOCAB]), pb.Ask(id=1, tokens=[1] * CONTEXT)]
        for ask in [*bad, pb.Ask(id=1, tokens=[1], sampling=pb.Sampling(temperature=-1))]:
            with pytest.raises(grpc.aio.AioRpcError):
                await Peer(channel).open(ask=ask)
        assert (len(registry), registry.detached) == (2, 1)


async def test_memory_has_the_share_that_the_operator_gives_it(target: Target) -> None:
    async with (
        serving(make_host(target, memory_share=0.25)) as running,
        grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel,
    ):
        await Peer(channel).open()
        (live,) = running.host.services.registry.live_sessions
        assert live.stream.budget.share == 0.25


async def test_streamed_drafts_that_come_late_change_nothing(channel: grpc.aio.Channel, target: Target) -> None:
    expected, _ = plain_text(target, PROMPT, SAMPLED)
    peer = Peer(channel)
    await peer.open(run_ahead=True)
    await peer.ask(PROMPT, SAMPLED)
    base, prefix = len(peer.tokens), peer.hashes.short_at(len(peer.tokens))
    for node, token in enumerate(expected[:-1]):  # one node at a time, while the server steps on
        await peer.draft([token], base=base, prefix_hash=prefix, first_node=node)
        await peer.draft([token], base=base, prefix_hash=prefix, first_node=node)
    while not peer.verdicts or peer.verdicts[-1].finish == pb.FINISH_UNSPECIFIED:
        await peer.verdict()
    assert peer.tokens[len(PROMPT) :] == expected


async def test_several_turns_reuse_what_is_cached(channel: grpc.aio.Channel, target: Target) -> None:
    peer = Peer(channel)
    await peer.open()
    await peer.ask(PROMPT, GREEDY)
    await answer_in_rounds(peer, plain_text(target, PROMPT, GREEDY)[0], random.Random(2), trees=False)
    start = len(peer.tokens)
    await peer.ask([9, 8, 7], SAMPLED)
    expected, _ = plain_text(target, peer.tokens, SAMPLED)
    await answer_in_rounds(peer, expected, random.Random(3), trees=True)
    assert peer.tokens[start + 3 :] == expected


# ---------------------------------------------------------------- memory


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


async def rows_sent(peer: Peer) -> dict[int, list[int]]:
    """The positions whose rows have come, on each plane, when nothing more is on its way."""
    while True:
        await peer.send(beat=pb.Beat(stamp=1))
        seen = len(peer.memory)
        frame = await peer.receive()
        while frame is not None and not frame.HasField("beat"):
            frame = await peer.receive()
        if len(peer.memory) == seen:
            break
    held: dict[int, list[int]] = {pb.PLANE_MEMORY: [], pb.PLANE_REUSED_STATE: []}
    for each in peer.memory:
        held[each.plane] += range(each.start, each.start + each.count)
    return {plane: sorted(positions) for plane, positions in held.items()}


async def test_a_client_gets_few_rows_and_all_others_when_it_wants_them(channel: grpc.aio.Channel) -> None:
    peer = Peer(channel)
    opened = await peer.open(reused_state=True, run_ahead=True, thin_memory=pb.ThinMemory(states=4, every=8))
    assert opened.thin_memory
    assert not opened.server_drafts  # it has no drafter
    await peer.ask(PROMPT, GREEDY)
    while not peer.verdicts or peer.verdicts[-1].finish == pb.FINISH_UNSPECIFIED:
        await peer.verdict()
    stop = len(peer.tokens) - 1
    await peer.rows(stop // 8 * 8, start=stop // 8 * 8 - 1)
    held = await rows_sent(peer)
    assert held[pb.PLANE_REUSED_STATE] == [0, 1, 2, 3]
    assert all(position % 8 == 7 for position in held[pb.PLANE_MEMORY])
    await peer.send(set_memory=pb.SetMemory())
    await peer.rows(stop)
    await peer.rows(stop, pb.PLANE_REUSED_STATE)
    assert await rows_sent(peer) == {plane: list(range(stop)) for plane in held}  # each once


async def test_a_server_for_devices_that_are_often_offline_sends_all_rows(target: Target) -> None:
    thin = pb.ThinMemory(states=1, every=1000)
    async with (
        serving(make_host(target, memory_share=1)) as running,
        grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel,
    ):
        peer = Peer(channel)
        opened = await peer.open(reused_state=True, run_ahead=True, thin_memory=thin)
        assert not opened.thin_memory
        await peer.send(set_memory=pb.SetMemory(thin=thin))  # which changes nothing
        await peer.ask(PROMPT, GREEDY)
        while not peer.verdicts or peer.verdicts[-1].finish == pb.FINISH_UNSPECIFIED:
            await peer.verdict()
        await peer.rows(len(peer.tokens) - 1)
        await peer.rows(len(peer.tokens) - 1, pb.PLANE_REUSED_STATE)


async def test_prompt_rows_come_newest_first_within_the_credit(channel: grpc.aio.Channel) -> None:
    prompt = [(7 * index) % VOCAB for index in range(60)]
    row = 2 * ROW_WIDTH
    peer = Peer(channel)
    await peer.open(credit_bytes=10 * row)
    await peer.ask(prompt, GREEDY)
    await peer.verdict()
    while sum(len(frame.payload) for frame in peer.memory) < 10 * row:
        await peer.receive()
    assert sum(frame.count for frame in peer.memory) == 10
    await peer.send(beat=pb.Beat(stamp=1))  # the answer shows that nothing else was on its way
    await peer.receive()
    assert sum(frame.count for frame in peer.memory) == 10
    await peer.send(credit=pb.Credit(bytes=10 * row))
    while sum(frame.count for frame in peer.memory) < 20:
        await peer.receive()
    stops = [60, *(frame.start for frame in peer.memory)]
    assert [frame.start + frame.count for frame in peer.memory] == stops[:-1]  # each ends where the one before began


async def test_verdicts_overtake_memory_that_has_no_credit(channel: grpc.aio.Channel, target: Target) -> None:
    peer = Peer(channel)
    await peer.open(credit_bytes=1)
    await peer.ask(PROMPT, GREEDY)
    finish = await answer_in_rounds(peer, plain_text(target, PROMPT, GREEDY)[0], random.Random(6), trees=False)
    assert finish is Finish.MAX_TOKENS
    assert sum(frame.count for frame in peer.memory) == 1  # a credit below one row lets one row through


async def test_the_codec_changes_while_running(channel: grpc.aio.Channel) -> None:
    peer = Peer(channel)
    await peer.open()
    await peer.ask(PROMPT, GREEDY)
    await peer.rows(len(PROMPT))
    await peer.send(set_codec=pb.SetCodec(codec=pb.CODEC_INT4))
    await peer.draft([])
    await peer.verdict()
    await peer.rows(len(PROMPT) + 1)
    assert [frame.codec for frame in peer.memory[-2:]] == [pb.CODEC_BF16, pb.CODEC_INT4]
    assert peer.memory[-1].start == len(PROMPT)


async def test_a_client_without_drafter_gets_no_memory(channel: grpc.aio.Channel, target: Target) -> None:
    identity = pb.Identity(target_fingerprint=IDENTITY.target_fingerprint, tokenizer_hash=IDENTITY.tokenizer_hash)
    peer = Peer(channel)
    opened = await peer.open(memory=False, identity=identity)
    assert opened.codec == pb.CODEC_UNSPECIFIED
    await peer.ask(PROMPT, GREEDY)
    await answer_in_rounds(peer, plain_text(target, PROMPT, GREEDY)[0], random.Random(7), trees=False)
    await peer.bye()
    assert peer.memory == []


# ---------------------------------------------------------------- stop, bye, resume


async def test_stop_ends_the_answer_and_the_next_turn_continues(channel: grpc.aio.Channel, target: Target) -> None:
    peer = Peer(channel)
    await peer.open()
    await peer.ask(PROMPT, GREEDY)
    await peer.verdict()
    await peer.send(stop=pb.Stop(base=len(peer.tokens), ask=peer.asks + 1))  # of another question
    await peer.draft([])
    assert (await peer.verdict()).finish == pb.FINISH_UNSPECIFIED
    await peer.send(stop=pb.Stop(base=len(peer.tokens), ask=peer.asks))
    ended = await peer.verdict()
    assert (ended.ask, ended.finish, list(ended.tokens)) == (1, pb.FINISH_CANCELLED, [])
    await peer.send(stop=pb.Stop(base=len(peer.tokens), ask=peer.asks))  # a second one finds nothing to stop
    start = len(peer.tokens)
    await peer.ask([1, 2], GREEDY)
    expected, _ = plain_text(target, peer.tokens, GREEDY)
    await answer_in_rounds(peer, expected, random.Random(8), trees=False)
    assert peer.tokens[start + 2 :] == expected


@pytest.mark.parametrize(("choose_nodes", "told"), [(True, {25}), (False, {0})])
async def test_a_device_learns_what_a_node_must_be_worth(
    target: Target, monkeypatch: pytest.MonkeyPatch, choose_nodes: bool, told: set[int]
) -> None:
    monkeypatch.setattr(Schedule, "least_chance", lambda _, answers: 0.25 * answers)
    async with serving(make_host(target, choose_nodes=choose_nodes)) as running, channel_to(running) as channel:
        peer = Peer(channel)
        await peer.open(run_ahead=True)
        await peer.ask(PROMPT, GREEDY)
        while not peer.verdicts or peer.verdicts[-1].finish == pb.FINISH_UNSPECIFIED:
            await peer.verdict()
    assert {verdict.least_percent for verdict in peer.verdicts} == told


async def test_bye_frees_the_session_and_a_broken_stream_keeps_it(
    server: RunningServer, channel: grpc.aio.Channel
) -> None:
    first, second = Peer(channel), Peer(channel)
    await first.open()
    await second.open(tokens=PROMPT)
    await first.bye()
    assert len(server.host.services.registry) == 1
    second.call.cancel()
    await until(lambda: server.host.services.registry.detached == 1)


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


async def test_a_client_that_holds_all_of_an_ended_answer_learns_its_end(
    server: RunningServer, channel: grpc.aio.Channel, target: Target
) -> None:
    expected, finish = plain_text(target, PROMPT, GREEDY)
    peer = Peer(channel)
    opened = await peer.open(run_ahead=True)
    await peer.ask(PROMPT, GREEDY)
    while not peer.verdicts or peer.verdicts[-1].finish == pb.FINISH_UNSPECIFIED:
        await peer.send(ack=pb.Ack(committed=len(peer.tokens)))
        await peer.verdict()
    peer.call.cancel()
    await until(lambda: server.host.services.registry.detached == 1)
    for token in (opened.resume_token, b"of another server"):
        again = Peer(channel)
        await again.open(tokens=PROMPT + expected, resume_token=token, run_ahead=True)
        await again.ask([], GREEDY, answer_start=len(PROMPT))
        verdict = await again.verdict()
        assert (verdict.base, list(verdict.tokens), verdict.finish) == (len(again.tokens), [], int(finish))
        again.call.cancel()


async def test_an_unknown_resume_token_opens_a_new_session(channel: grpc.aio.Channel, target: Target) -> None:
    expected, _ = plain_text(target, PROMPT, GREEDY)
    held = PROMPT + expected[:6]
    peer = Peer(channel)
    opened = await peer.open(tokens=held, resume_token=b"of another server")
    assert opened.cached_tokens == 0
    assert opened.resume_token != b"of another server"
    await peer.ask([], GREEDY, answer_start=len(PROMPT))
    await answer_in_rounds(peer, expected[6:], random.Random(9), trees=False)
    assert peer.tokens[len(PROMPT) :] == expected


async def test_what_was_written_offline_is_verified_as_one_long_draft(
    channel: grpc.aio.Channel, target: Target
) -> None:
    expected, _ = plain_text(target, PROMPT, GREEDY)
    wrong = [*expected[:15], (expected[15] + 1) % VOCAB, 3, 3]
    peer = Peer(channel)
    peer.append(PROMPT)
    provisional = pb.Draft(epoch=1, base=len(PROMPT), prefix_hash=peer.hashes.short_at(len(PROMPT)), tokens=wrong)
    ask = peer.ask_message([], GREEDY, answer_start=len(PROMPT))
    ask.provisional.CopyFrom(provisional)
    peer.tokens, peer.hashes = [], PrefixHashes()
    await peer.open(tokens=PROMPT, ask=ask)
    verdict = await peer.verdict()
    assert list(verdict.tokens) == expected[:16]
    assert verdict.accepted == 15


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


async def test_a_resume_brings_what_was_chosen_meanwhile_and_takes_standalone_text(
    server: RunningServer, channel: grpc.aio.Channel, target: Target
) -> None:
    how = AnswerSettings(max_tokens=100, ignore_end_of_text=True)
    expected, _ = plain_text(target, PROMPT, how)
    peer = Peer(channel)
    peer.epoch = 7
    opened = await peer.open(run_ahead=True)
    await peer.ask(PROMPT, how)
    await peer.verdict()
    await peer.draft(expected[1:3])
    await peer.verdict()
    peer.call.cancel()
    held = list(peer.tokens)
    session = server.host.services.registry.live_sessions[0].session
    await until(lambda: server.host.services.registry.detached == 1 and len(session.tokens) >= len(held) + 40)
    again = Peer(channel)
    again.append(held)
    ask = again.ask_message([], how, answer_start=len(PROMPT))
    done = len(held) - len(PROMPT)
    ask.provisional.CopyFrom(
        pb.Draft(
            epoch=1, base=len(held), prefix_hash=again.hashes.short_at(len(held)), tokens=expected[done : done + 95]
        )
    )
    again.tokens, again.hashes = [], PrefixHashes()
    await again.open(tokens=held, resume_token=opened.resume_token, run_ahead=True, ask=ask)
    backlog = verdict = await again.verdict()
    assert backlog.base == len(held)
    assert len(backlog.tokens) >= 40
    if not backlog.drafted:  # else the first verification was done before this verdict could leave, and is part of it
        verdict = await again.verdict()
    assert verdict.accepted > 0  # a new stream counts from the start: an epoch below the old stream's is no stale one
    while verdict.finish == pb.FINISH_UNSPECIFIED:
        await again.send(ack=pb.Ack(committed=len(again.tokens)))
        verdict = await again.verdict()
    assert again.tokens[len(PROMPT) :] == expected


async def test_a_take_over_without_memory_is_sent_none(server: RunningServer, channel: grpc.aio.Channel) -> None:
    first, second = Peer(channel), Peer(channel)
    opened = await first.open(tokens=PROMPT)
    await second.open(tokens=PROMPT, memory=False, resume_token=opened.resume_token)
    await first.done()
    live = server.host.services.registry.find(opened.resume_token, Caller())
    assert live is not None
    assert live.stream.feed is None
    await second.ask([3], AnswerSettings(max_tokens=1))
    await second.verdict()
    await second.bye()
    assert second.memory == []


async def test_a_session_is_taken_over_from_a_stream_that_hangs(channel: grpc.aio.Channel) -> None:
    peer, again = Peer(channel), Peer(channel)
    opened = await peer.open()
    await again.open(resume_token=opened.resume_token)
    await peer.done()
    assert peer.go_away is not None
    assert "another stream" in peer.go_away.reason
    await again.ask(PROMPT, GREEDY)
    await again.verdict()


async def test_a_take_over_that_is_refused_changes_nothing(channel: grpc.aio.Channel, target: Target) -> None:
    expected, _ = plain_text(target, PROMPT, GREEDY)
    peer, other = Peer(channel), Peer(channel)
    opened = await peer.open()
    await peer.ask(PROMPT, GREEDY)
    await peer.verdict()
    with pytest.raises(grpc.aio.AioRpcError):
        await other.open(tokens=[1], resume_token=opened.resume_token, ask=pb.Ask(id=2, base=1, tokens=[VOCAB]))
    while peer.verdicts[-1].finish == pb.FINISH_UNSPECIFIED:
        await peer.draft([])
        await peer.verdict()
    assert peer.tokens[len(PROMPT) :] == expected


async def test_clients_take_turns(server: RunningServer, channel: grpc.aio.Channel, target: Target) -> None:
    prompts = [[index, *PROMPT] for index in range(5)]
    peers = [Peer(channel) for _ in prompts]

    async def converse(peer: Peer, prompt: list[int]) -> None:
        await peer.open(run_ahead=True)
        await peer.ask(prompt, GREEDY)
        while not peer.verdicts or peer.verdicts[-1].finish == pb.FINISH_UNSPECIFIED:
            await peer.verdict()

    async with asyncio.TaskGroup() as group:
        for peer, prompt in zip(peers, prompts, strict=True):
            group.create_task(converse(peer, prompt))
    for peer, prompt in zip(peers, prompts, strict=True):
        assert peer.tokens[len(prompt) :] == plain_text(target, prompt, GREEDY)[0]


async def test_a_full_conversation_can_be_opened_again(channel: grpc.aio.Channel) -> None:
    peer = Peer(channel)
    opened = await peer.open(tokens=[1] * CONTEXT)
    assert opened.resume_token


async def test_a_state_leaves_with_its_verdict(channel: grpc.aio.Channel, target: Target) -> None:
    peer = Peer(channel)
    await peer.open(reused_state=True)
    await peer.ask(PROMPT, GREEDY)
    verdict = await peer.verdict()
    memory = {each.plane: each for each in verdict.memory}[
        pb.PLANE_REUSED_STATE
    ]  # its rows of memory may have been ready
    assert (memory.start, memory.count) == (0, len(PROMPT))
