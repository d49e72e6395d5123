"""The server's steps without a network, on a tiny target whose forwards take long enough for drafts to pay."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pytest
from moa_bench.suites.single.local_server import GrowingDrafts, LocalServer, SessionRules
from moa_server.drafting.forward_cost import RowShares
from moa_server.engine.planning.schedule import HasSession, Schedule
from moa_server.engine.server_drafts import ServerDrafts
from moa_server.engine.stepper import Stepper
from moa_server.session.session import SessionLimits
from moa_server.verifier import Request, Target, TargetOutput
from moa_server.verifier.cache import KVCache
from moa_server.verifier.target import Rows
from moa_shared.drafter import Checkpoint
from moa_shared.protocol.finish_rule import AnswerSettings

from tests.net.server_drafter import TargetDrafter, drafting_source
from tests.net.server_peer import CONTEXT, plain_text
from tests.support.tiny_models import tiny_kernel_target, tiny_model

PROMPT = [5, 9, 11, 40]
SETTINGS = AnswerSettings(max_tokens=20, ignore_end_of_text=True)
STEP_MS, ROW_MS = 20.0, 0.1

MakeServer = Callable[..., LocalServer]


class SlowTarget(Target):
    """A target whose forwards take STEP_MS, and ROW_MS for each row more; all else is `inner`'s."""

    def __init__(self, inner: Target) -> None:
        super().__init__(inner.shape)
        self.page_tokens = inner.page_tokens
        self._inner = inner

    def kv_bytes(self) -> int:
        return self._inner.kv_bytes()

    def new_cache(self) -> KVCache:
        return self._inner.new_cache()

    def normed(self, state: Rows) -> Rows:
        return self._inner.normed(state)

    def memory_rows(self, drafter: Checkpoint) -> Callable[[Rows], Rows]:
        return self._inner.memory_rows(drafter)

    def _run(self, requests: Sequence[Request], depths: Sequence[Sequence[int]]) -> list[TargetOutput]:
        began = time.perf_counter()
        outputs = self._inner._run(requests, depths)
        took_s = (STEP_MS + ROW_MS * (sum(len(request.tokens) for request in requests) - 1)) / 1e3
        time.sleep(max(0.0, began + took_s - time.perf_counter()))
        return outputs


@pytest.fixture(scope="module")
def make_server() -> MakeServer:
    inner = tiny_kernel_target(tiny_model(max_position_embeddings=CONTEXT))

    def make(shift: int | None, **limits: int) -> LocalServer:
        rules = SessionRules(SessionLimits(CONTEXT, inner.vocab_size, **limits), frozenset(), str)
        if shift is None:
            return LocalServer(Stepper(SlowTarget(inner)), rules)
        source = drafting_source(inner, TargetDrafter, shift)
        server, schedule = ServerDrafts(), Schedule[HasSession](RowShares.straight(0.01), STEP_MS)
        return LocalServer(
            Stepper(SlowTarget(inner), [source]),
            rules,
            lambda session, tensors, most: GrowingDrafts(session, tensors, server, schedule),
            source,
        )

    return make


def test_drafts_save_steps_and_leave_the_text(make_server: MakeServer) -> None:
    server = make_server(None)
    expected = plain_text(server.stepper.target, PROMPT, SETTINGS)[0]
    plain, drafted = server.ask(PROMPT, 20), make_server(0).ask(PROMPT, 20)
    assert list(plain.tokens) == list(drafted.tokens) == expected
    assert (plain.forwards, plain.nodes) == (19, 0)
    assert drafted.forwards is not None
    assert drafted.nodes is not None
    assert drafted.forwards < 12
    assert drafted.nodes >= 19 - drafted.forwards
    assert drafted.steady_ms >= STEP_MS * drafted.forwards + ROW_MS * drafted.nodes
    assert drafted.first_ms >= STEP_MS + ROW_MS * (len(PROMPT) - 1)
    assert make_server(1).ask(PROMPT, 20).tokens == plain.tokens  # drafts that are wrong


def test_a_prompt_is_read_in_chunks(make_server: MakeServer) -> None:
    answer = make_server(0, prefill_chunk=3).ask([*PROMPT, *PROMPT], 20)
    assert answer.first_ms >= 3 * STEP_MS
    assert len(answer.tokens) == 20
