"""The client of the measurements that has no device, against a server that may draft."""

from __future__ import annotations

from moa_bench.suites.capacity.tables import UserAnswer
from moa_bench.suites.capacity.users import PlainAsker
from moa_server.engine.stepper import Stepper
from moa_shared.protocol.finish_rule import AnswerSettings

from tests.net.server_drafter import drafting_source
from tests.net.server_peer import CONTEXT, make_host, plain_text, serving
from tests.support.tiny_models import tiny_kernel_target, tiny_model

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
