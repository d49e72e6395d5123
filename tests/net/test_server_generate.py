"""Generate: the plain API, over a real server."""

import asyncio
from typing import Any

import grpc.aio
import pytest
from inline_snapshot import snapshot
from moa.v1 import moa_pb2 as pb
from moa.v1 import moa_pb2_grpc
from moa_server.app import RunningServer
from moa_server.verifier import Target
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.handshake_checks import PROTOCOL_VERSION, error_from_rpc
from moa_shared.protocol.protobuf_messages import settings_to_proto
from moa_shared.sampling.scores import log_softmax
from moa_shared.sampling.settings import Sampling, WantedChances

from tests.net.server_peer import CONTEXT, DRAFTER, END_OF_TEXT, IDENTITY, VOCAB, generate, plain_text, until

PROMPT = [5, 17, 33, 2, 64]


async def test_describe_says_what_is_served(channel: grpc.aio.Channel) -> None:
    said = await moa_pb2_grpc.MoaStub(channel).Describe(pb.DescribeRequest())
    assert said.protocol_version == PROTOCOL_VERSION
    assert said.identity == IDENTITY
    assert said.limits.context_tokens == CONTEXT
    assert list(said.codecs) == [pb.CODEC_BF16, pb.CODEC_INT8, pb.CODEC_INT4]
    assert list(said.drafters) == [DRAFTER]
    assert said.execution == pb.Execution(level="float32", exact=False, details="kernels")


@pytest.mark.parametrize("seed", range(5))
async def test_sampled_text_depends_on_the_seed_alone(channel: grpc.aio.Channel, target: Target, seed: int) -> None:
    settings = AnswerSettings(Sampling(temperature=1.0, top_k=40, seed=seed), max_tokens=25)
    first, second = await asyncio.gather(generate(channel, PROMPT, settings), generate(channel, PROMPT, settings))
    assert first == second == plain_text(target, PROMPT, settings)


async def test_a_call_that_ends_early_frees_its_session(server: RunningServer, channel: grpc.aio.Channel) -> None:
    call = moa_pb2_grpc.MoaStub(channel).Generate(pb.GenerateRequest(tokens=PROMPT))
    await call.read()
    assert len(server.host.services.registry) == 1
    call.cancel()
    await until(lambda: len(server.host.services.registry) == 0)


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


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"given": 3}, snapshot("3 of 3 tokens are given as the answer. Leave at least the first one out.")),
        (
            {"sampling": pb.Sampling()},
            snapshot(
                "A given answer comes back with the chances of its tokens, and needs no form. Ask for chances, and for no constraint."
            ),
        ),
        (
            {"tokens": [1, 2, VOCAB]},
            snapshot("Token 1 is 97, outside the vocabulary (0 to 96). Use the server's tokenizer."),
        ),
        (
            {"tokens": [1] * (CONTEXT + 1), "given": 1},
            snapshot(
                "The request has 201 tokens, at most 200 fit. Shorten the prompt, /reset the conversation, or raise the server's --context-length."
            ),
        ),
    ],
)
async def test_a_given_text_that_cannot_be_one_is_refused(
    channel: grpc.aio.Channel, wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await given(channel, **{"tokens": [1, 2, 3], **wrong})
    assert str(error_from_rpc(refused.value)) == message
