from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from moa_client.conversation.conversation import Conversation
from moa_client.drafting.drafter_thread import DrafterDesk
from moa_client.drafting.online import ServedDrafting
from moa_client.drafting.settings import TalkSettings
from moa_client.memory.plan import DeviceMemory
from moa_shared.protocol.finish_rule import AnswerSettings, Finish
from moa_shared.protocol.messages import Verdict


def test_a_round_that_was_lost_with_the_link_is_drafted_again() -> None:
    rounds: list[int] = []
    desk = SimpleNamespace(busy=False, draft=lambda committed, sampling: rounds.append(committed))
    conversation = Conversation(vocab_size=100)
    settings = TalkSettings(drafting="rounds", run_ahead=False)
    sent: list[Any] = []
    drafting = ServedDrafting(
        settings,
        conversation,
        cast("DrafterDesk", desk),
        cast("DeviceMemory", SimpleNamespace(hold_until_ms=0.0)),
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
