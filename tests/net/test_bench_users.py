"""The bench's users against a real server on loopback: plain streaming, and drafts of an oracle, broken off too."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence

import pytest
from moa_bench.harness.oracle import Script, with_oracle
from moa_bench.suites.capacity.tables import UserAnswer
from moa_bench.suites.capacity.users import EngineAsker, PlainAsker, run_users
from moa_client.device.loading import Device
from moa_client.drafting.settings import DraftingSettings
from moa_server.engine.stepper import Stepper
from moa_server.running.running_server import RunningServer
from moa_server.verifier import Request, Target, TargetOutput
from moa_server.verifier.kernel_target import KernelTarget
from moa_shared.protocol.finish_rule import AnswerSettings

from tests.net.client_device import device
from tests.net.server_drafter import drafting_source
from tests.net.server_peer import CONTEXT, VOCAB, make_host, plain_text, serving, tiny_target
from tests.support.tiny_models import tiny_kernel_target, tiny_model

PROMPTS = [[[5, 6, 7, 8]], [[9, 10, 11]]]
SETTINGS = AnswerSettings(max_tokens=24, ignore_end_of_text=True)
DEVICE_DRAFTS = DraftingSettings("device")


def oracle_asker(address: str, target: Target, script: Script, draft_ms: float) -> EngineAsker:
    def device_for(question: int) -> Device:
        return with_oracle(device(target, "lookup"), script, draft_ms)

    return EngineAsker(address, device_for, VOCAB, SETTINGS, DEVICE_DRAFTS)


class SlowTarget(KernelTarget):
    """A target whose steps take long enough that drafts come in time."""

    def forward_all(self, requests: Sequence[Request]) -> list[TargetOutput]:
        time.sleep(0.005)
        return super().forward_all(requests)


@pytest.fixture
async def slow_server() -> AsyncIterator[RunningServer]:
    target = tiny_target()
    target.__class__ = SlowTarget
    async with serving(make_host(target)) as running:
        yield running


async def test_an_oracles_users_get_the_texts_of_plain_ones_with_fewer_arrivals(
    slow_server: RunningServer, target: Target
) -> None:
    address = f"127.0.0.1:{slow_server.port}"
    plain = [PlainAsker(address, SETTINGS) for _ in PROMPTS]
    answers, _ = await run_users(plain, PROMPTS, None)
    for asker in plain:
        await asker.close()
    texts = {answer.user: answer.tokens for answer in answers if len(answer.tokens) == 24}
    scripts = [Script((*PROMPTS[user][0], *texts[user]), 1.0, 0, VOCAB) for user in texts]
    oracles = [oracle_asker(address, target, scripts[user], 0.0) for user in range(2)]
    drafted, _ = await run_users(oracles, PROMPTS, None)
    for each in oracles:
        await each.close()
    whole = [answer for answer in drafted if len(answer.tokens) == 24]
    assert {answer.user for answer in whole} == {0, 1}
    assert all(answer.tokens == texts[answer.user][: len(answer.tokens)] for answer in drafted)
    assert any(len(answer.arrivals) < 24 for answer in whole)


PROMPT = [5, 9, 11, 40]
GREEDY = AnswerSettings(max_tokens=30, ignore_end_of_text=True)


async def test_the_server_drafts_only_where_it_may() -> None:
    target = tiny_kernel_target(tiny_model(max_position_embeddings=CONTEXT))
    expected = plain_text(target, PROMPT, GREEDY)[0]
    stepper = Stepper(target, [drafting_source(target)])
    async with serving(make_host(target, stepper=stepper, draft_nodes=6)) as running:
        address = f"127.0.0.1:{running.port}"
        for drafts in (False, True):
            asker, answer = PlainAsker(address, GREEDY, server_drafts=drafts), UserAnswer(0, 0, 0.0)
            await asker.ask(PROMPT, answer)
            await asker.close()
            assert answer.tokens == expected
            assert (len(answer.arrivals) < 30) is drafts
