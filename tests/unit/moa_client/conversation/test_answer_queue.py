"""Answers that the user stops without the server."""

from __future__ import annotations

from moa_client.conversation.answer_queue import AnswerQueue, EndRule
from moa_client.conversation.conversation import Conversation, Phase
from moa_client.conversation.events import Committed, Ended, LinkChanged, LinkState, Provisional
from moa_shared.protocol.finish_rule import AnswerSettings, Finish
from moa_shared.protocol.messages import Verdict

PROMPT = [1, 2, 3]


def asked() -> AnswerQueue:
    answers = AnswerQueue(Conversation(50), EndRule(frozenset(), 1000, str))
    answers.begin(lambda _: PROMPT, AnswerSettings(max_tokens=20))
    return answers


def commit(answers: AnswerQueue, tokens: list[int]) -> None:
    conversation = answers.conversation
    held = len(conversation.tokens)
    progress = conversation.on_verdict(
        Verdict(conversation.ask_id, 0, held, conversation.hashes.at(held), tokens, Finish.UNFINISHED)
    )
    answers.on_committed(progress.tokens)


def test_with_no_standalone_text_a_stopped_answer_is_over() -> None:
    answers = asked()
    commit(answers, [4, 5])
    answers.stop()
    assert list(answers.events) == [Committed((4, 5)), Ended(Finish.CANCELLED)]
    assert answers.conversation.phase is Phase.IDLE
    assert answers.conversation.tokens == [*PROMPT, 4, 5]
    assert (answers.front, answers.unsettled) == (None, 0)


def test_a_question_that_is_stopped_without_an_answer_was_not_asked() -> None:
    answers = asked()
    answers.stop()
    assert list(answers.events) == [Ended(Finish.CANCELLED)]
    assert answers.conversation.tokens == []


def test_standalone_text_waits_to_be_verified_and_the_answer_ends_after_it() -> None:
    answers = asked()
    commit(answers, [4, 5])
    job = answers.front
    assert job is not None
    answers.write(job, [6, 7])
    answers.stop()
    assert list(answers.events)[-2:] == [Provisional((6, 7)), Ended(Finish.CANCELLED, provisional=True)]
    assert answers.unsettled == 1
    assert answers.conversation.settings.max_tokens == 4


def test_the_reader_of_the_next_answer_gets_nothing_of_one_that_was_given_up() -> None:
    answers = asked()
    commit(answers, [4, 5])
    answers.events.append(LinkChanged(LinkState.SLOW))
    answers.forget_current()
    assert list(answers.events) == [LinkChanged(LinkState.SLOW)]
    assert answers.conversation.tokens == [*PROMPT, 4, 5]
