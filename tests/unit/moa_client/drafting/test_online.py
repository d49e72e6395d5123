from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from moa_client.conversation.conversation import Conversation
from moa_client.drafting.drafter_thread import DrafterThread
from moa_client.drafting.online import OnlineDrafting
from moa_client.drafting.settings import DraftingSettings
from moa_client.memory.plan import MemoryPlan
from moa_shared.protocol.finish_rule import AnswerSettings, Finish
from moa_shared.protocol.messages import Verdict


def test_a_round_that_was_lost_with_the_link_is_drafted_again() -> None:
    rounds: list[int] = []
    thread = SimpleNamespace(busy=False, draft=lambda committed, sampling: rounds.append(committed))
    conversation = Conversation(vocab_size=100)
    settings = DraftingSettings(drafting="rounds", run_ahead=False)
    sent: list[Any] = []
    drafting = OnlineDrafting(
        settings,
        conversation,
        cast("DrafterThread", thread),
        cast("MemoryPlan", SimpleNamespace(hold_until_ms=0.0)),
        lambda **frame: sent.append(frame),
    )
    conversation.ask([1, 2, 3], AnswerSettings())
    drafting.on_asked()
    conversation.on_verdict(Verdict(1, 0, 3, conversation.hashes.at(3), [4], Finish.UNFINISHED))
    drafting.draft_on(0.0)
    assert rounds == []  # no verdict has gone through it
    drafting.restart()  # the link is lost, and what was drafted with it
    drafting.draft_on(0.0)
    assert rounds == [4]
