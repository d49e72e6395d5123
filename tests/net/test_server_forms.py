"""Answers of a form over the wire: what is forced is drafted for those who want it, and changes no text."""

from __future__ import annotations

import re

import pytest
from moa.v1 import moa_pb2 as pb
from moa.v1 import moa_pb2_grpc
from moa_server.engine.stepper import Stepper
from moa_server.verifier import Target
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.protobuf_messages import settings_to_proto
from moa_shared.sampling.settings import Constraint, ConstraintKind, Sampling

from tests.net.server_drafter import drafting_source
from tests.net.server_peer import CONTEXT, END_OF_TEXT, Peer, channel_to, make_host, serving
from tests.support.tiny_models import tiny_kernel_target, tiny_model
from tests.support.toy_forms import ToyForms, characters_of

PROMPT = [5, 9, 11, 40]
FORM = Constraint(ConstraintKind.REGEX, r"name: [a-z]{4}, colour: (red|green), size: [0-9]{3}")
SETTINGS = AnswerSettings(Sampling(1.0, seed=7, constraint=FORM), max_tokens=60)


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_kernel_target(tiny_model(max_position_embeddings=CONTEXT))


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


async def test_a_single_call_is_asked_too(target: Target) -> None:
    texts, steps = [], []
    async with (
        serving(make_host(target, forms=ToyForms(END_OF_TEXT).as_compiler())) as running,
        channel_to(running) as channel,
    ):
        for wanted in (False, True):
            request = pb.GenerateRequest(tokens=PROMPT, sampling=settings_to_proto(SETTINGS), server_drafts=wanted)
            parts = [list(part.tokens) async for part in moa_pb2_grpc.MoaStub(channel).Generate(request)]
            texts.append([token for part in parts for token in part])
            steps.append(len(parts))
    assert texts[0] == texts[1]
    assert steps[0] == len(texts[0])
    assert steps[1] < steps[0] / 2
