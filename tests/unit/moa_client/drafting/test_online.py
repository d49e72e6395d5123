"""Online drafting with a drafter thread that does what the test says, when it says so."""

from __future__ import annotations

from typing import Any

import pytest
from moa_client.conversation.conversation import Conversation
from moa_client.drafting.online import (
    LONE_TIMES,
    PATIENT_VERDICTS,
    TRIAL_TOKENS,
    TRIAL_VERDICTS,
    DraftingRest,
    OnlineDrafting,
)
from moa_client.drafting.settings import DraftingSettings
from moa_client.drafting.streamed import DraftCompleted, DraftExtended, DraftStep
from moa_client.memory import MemoryPlan
from moa_shared.drafting import Growth
from moa_shared.errors import ProtocolError
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import Ack, Draft, Verdict
from moa_shared.sampling.settings import Sampling
from moa_shared.tree.draft_tree import DraftTree

PROMPT = [1, 2, 3]
ROUNDS = DraftingSettings(rounds=True, run_ahead=False)
STREAMED = DraftingSettings(tree=False, run_ahead=True)


class FakeThread:
    """A drafter thread that keeps what it was asked for until the test answers."""

    def __init__(self) -> None:
        self.busy = False
        self.steps: list[DraftStep] = []
        self.rounds: list[int] = []

    def grow(self, step: DraftStep, sampling: Sampling) -> None:
        assert not self.busy
        self.busy = True
        self.steps.append(step)

    def draft(self, committed: int, sampling: Sampling) -> None:
        assert not self.busy
        self.busy = True
        self.rounds.append(committed)


class Bench:
    """Online drafting of one answer, and the frames that it sent."""

    def __init__(self, settings: DraftingSettings, *, drafts: bool = True) -> None:
        self.thread = FakeThread()
        self.memory = MemoryPlan(None, {}, Codec.BF16)
        self.conversation = Conversation(vocab_size=100)
        self.sent: list[Draft | Ack] = []
        thread = self.thread if drafts else None
        self.drafting = OnlineDrafting(settings, self.conversation, thread, self.memory)
        self.drafting.on_opened(server_drafts=False)
        self.conversation.ask(PROMPT, AnswerSettings())
        self.drafting.on_asked()
        self.drafting.mark_synced()  # by the question

    def draft_on(self, now: float = 0.0) -> None:
        self.sent += self.drafting.draft_on(now)

    def complete(self, completed: DraftCompleted) -> None:
        draft = self.drafting.on_completed(completed)
        self.sent += [draft] if draft is not None else []

    def verdict(self, *tokens: int, **fields: Any) -> None:
        held = len(self.conversation.tokens)
        self.drafting.on_verdict(0.0, Verdict(1, held, self.conversation.hashes.short_at(held), tokens, **fields))

    def grown(self, *tokens: int) -> None:
        self.thread.busy = False
        step = self.thread.steps[-1]
        self.drafting.on_extended(0.0, DraftExtended(step, Growth.chain(step.draft, tokens), 1.0))


# ---------------------------------------------------------------- rounds


def test_a_round_that_a_verdict_has_overtaken_is_not_sent() -> None:
    bench = Bench(ROUNDS)
    bench.verdict(4)
    bench.draft_on()
    bench.verdict(5)
    bench.complete(DraftCompleted(4, DraftTree.chain([5, 6])))
    assert bench.sent == []


# ---------------------------------------------------------------- a streamed draft


def test_standalone_text_becomes_the_draft_in_flight() -> None:
    bench = Bench(STREAMED)
    assert bench.drafting.propose_written([]) is None
    message = bench.drafting.propose_written([4, 5])
    assert message is not None
    assert (message.base, list(message.tokens)) == (3, [4, 5])
    bench.verdict(4)
    bench.draft_on()
    assert bench.thread.steps[0].draft == DraftTree.chain([5])  # what is left of it
    bench.grown(6)
    bench.draft_on()
    [frame] = bench.sent
    assert isinstance(frame, Draft)
    assert (frame.first_node, list(frame.tokens)) == (2, [6])  # the server has the others


# ---------------------------------------------------------------- both


def test_a_server_without_time_for_drafts_is_sent_none_and_hears_that_few_rows_are_enough() -> None:
    bench = Bench(DraftingSettings())
    for token, least_chance, drafts in ((4, 0.95, False), (5, 0.1, True)):
        bench.verdict(token, step_ms=50.0, least_chance=least_chance)
        bench.draft_on()
        assert bench.drafting.drafts == bool(bench.thread.steps) == drafts


def test_a_verdict_that_leaves_a_gap_is_refused() -> None:
    bench = Bench(STREAMED)
    with pytest.raises(ProtocolError, match="a verdict from position 3 or before"):
        bench.drafting.on_verdict(0.0, Verdict(1, 5, 0, [4]))


SERVER_DRAFTED = Verdict(1, 10, 0, (1, 2), drafted=3, server_drafted=3, server_accepted=1)
PLAIN = Verdict(1, 10, 0, (1,))
SHARED = Verdict(1, 10, 0, (1,), shared=True)


def rest_after(*verdicts: Verdict, may_rest: bool = True, server_drafts: bool = True) -> DraftingRest:
    rest = DraftingRest(may_rest=may_rest)
    rest.on_opened(server_drafts=server_drafts)
    for verdict in verdicts:
        rest.on_verdict(verdict)
    return rest


def test_the_device_drafts_at_once_for_a_server_that_does_not() -> None:
    assert not rest_after(server_drafts=False).rests
    assert not rest_after(PLAIN, PLAIN, server_drafts=False).rests
    assert rest_after(PLAIN, SERVER_DRAFTED, server_drafts=False).rests  # one that did not say that it would


def test_a_server_that_has_nothing_to_guess_is_left_alone() -> None:
    assert rest_after(*[PLAIN] * 2 * PATIENT_VERDICTS).rests
    assert rest_after(SERVER_DRAFTED, *[PLAIN] * 2 * PATIENT_VERDICTS).rests


def test_a_server_that_has_stopped_guessing_is_noticed_though_nobody_shares_it() -> None:
    """Its drafter has failed, or it is older and does not say which forwards are shared."""
    for server_drafts in (True, False):
        rest = rest_after(SERVER_DRAFTED, *[PLAIN] * (LONE_TIMES * PATIENT_VERDICTS - 1), server_drafts=server_drafts)
        assert rest.rests
        rest.on_verdict(PLAIN)
        assert not rest.rests
        rest.on_verdict(SERVER_DRAFTED)
        assert rest.rests


def test_the_device_drafts_again_when_the_server_has_no_time_for_it() -> None:
    assert rest_after(SERVER_DRAFTED, *[SHARED] * (PATIENT_VERDICTS - 1)).rests
    assert not rest_after(SERVER_DRAFTED, *[SHARED] * PATIENT_VERDICTS).rests
    assert rest_after(SERVER_DRAFTED, *[SHARED] * PATIENT_VERDICTS, SERVER_DRAFTED).rests


def test_now_and_then_the_device_rests_to_see_whether_the_server_has_time() -> None:
    rest = rest_after(*[PLAIN] * (TRIAL_TOKENS - 1), server_drafts=False)
    assert not rest.rests
    rest.on_verdict(PLAIN)
    rests = []
    for _ in range(TRIAL_TOKENS + TRIAL_VERDICTS):
        rests.append(rest.rests)
        rest.on_verdict(PLAIN)
    assert rests == [True] * TRIAL_VERDICTS + [False] * TRIAL_TOKENS
    assert rest.rests


def test_a_device_that_may_not_rest_always_drafts() -> None:
    assert not rest_after(SERVER_DRAFTED, may_rest=False).rests
    assert not rest_after(*[PLAIN] * 2 * TRIAL_TOKENS, may_rest=False).rests
