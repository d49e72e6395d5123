"""One round ahead, with the client's own conversation and streamed drafts."""

from __future__ import annotations

from moa_bench.suites.split.round_ahead import RoundAhead
from moa_client.conversation.conversation import Conversation
from moa_client.drafting.streamed import StreamedDrafting
from moa_shared.drafting import Growth
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.messages import Draft, Verdict

NODES = 3


class Round:
    """An answer whose first token is there, and what the device sends of it."""

    def __init__(self) -> None:
        self.conversation = Conversation(vocab_size=100)
        self.drafting = StreamedDrafting(self.conversation, RoundAhead(NODES), announces_nothing=True)
        self.conversation.ask([1, 2, 3], AnswerSettings())
        self.verdict(4)

    def verdict(self, *tokens: int) -> None:
        held = len(self.conversation.tokens)
        verdict = Verdict(1, held, self.conversation.hashes.short_at(held), tokens)
        self.drafting.on_verdict(self.conversation.on_verdict(verdict))

    def draft(self, first: int) -> list[Draft]:
        """Drafts first, first + 1, ... for as long as the rule lets it, and gives what was sent meanwhile."""
        sent, token = [], first
        while (step := self.drafting.next_step(0.0)) is not None:
            self.drafting.on_extended(step, Growth.chain(step.draft, [token]))
            token += 1
            if (message := self.drafting.take_frame()) is not None:
                sent.append(message)
        if (message := self.drafting.take_frame(flush=True)) is not None:
            sent.append(message)
        return sent


def test_the_next_chain_is_drafted_while_one_is_under_way_and_held_back() -> None:
    answer = Round()
    (first,) = answer.draft(10)
    assert list(first.tokens) == [10, 11, 12]
    assert list(answer.conversation.draft.tokens) == [10, 11, 12, 13, 14, 15, 16]


def test_a_right_guess_sends_the_next_chain_at_once() -> None:
    answer = Round()
    answer.draft(10)
    answer.verdict(10, 11, 12, 13)
    message = answer.drafting.take_frame()
    assert message is not None
    assert list(message.tokens) == [13, 14, 15, 16]  # of which the server has made the first one itself
    assert answer.draft(17) == []
    assert list(answer.conversation.draft.tokens) == [14, 15, 16, 17, 18, 19, 20]


def test_a_wrong_guess_drops_what_was_drafted_meanwhile() -> None:
    answer = Round()
    answer.draft(10)
    answer.verdict(10, 11, 50)
    assert not answer.conversation.draft
    (second,) = answer.draft(60)
    assert list(second.tokens) == [60, 61, 62]


def test_another_token_than_the_one_guessed_drops_it_too() -> None:
    answer = Round()
    answer.draft(10)
    answer.verdict(10, 11, 12, 99)
    assert not answer.conversation.draft
