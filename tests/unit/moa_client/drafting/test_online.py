"""Online drafting with a drafter thread that does what the test says, when it says so."""

from __future__ import annotations

from typing import Any

import pytest
from moa_client.conversation.conversation import Conversation
from moa_client.drafting.online import (
    PATIENT_VERDICTS,
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

PROMPT = [1, 2, 3]
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


# ---------------------------------------------------------------- a streamed draft


# ---------------------------------------------------------------- both


def test_a_verdict_that_leaves_a_gap_is_refused() -> None:
    bench = Bench(STREAMED)
    with pytest.raises(ProtocolError, match="a verdict from position 3 or before"):
        bench.drafting.on_verdict(0.0, Verdict(1, 5, 0, [4]))


SERVER_DRAFTED = Verdict(1, 10, 0, (1, 2), drafted=3, server_drafted=3, server_accepted=1)
PLAIN = Verdict(1, 10, 0, (1,))


def rest_after(*verdicts: Verdict, may_rest: bool = True, server_drafts: bool = True) -> DraftingRest:
    rest = DraftingRest(may_rest=may_rest)
    rest.on_opened(server_drafts=server_drafts)
    for verdict in verdicts:
        rest.on_verdict(verdict)
    return rest


def test_a_server_that_has_nothing_to_guess_is_left_alone() -> None:
    assert rest_after(*[PLAIN] * 2 * PATIENT_VERDICTS).rests
    assert rest_after(SERVER_DRAFTED, *[PLAIN] * 2 * PATIENT_VERDICTS).rests
