"""Makes the state with which an engine continues, from what the history holds. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from moa_shared.protocol.finish_rule import Finish

from moa_client.conversation.answer_options import AnswerOptions
from moa_client.conversation.conversation import ConversationState
from moa_client.conversation.jobs import Job, Turn
from moa_client.conversation.text_runs import BY_LETTER
from moa_client.history.records import StoredAnswer, StoredConversation


def restored(stored: StoredConversation, turn_of: Callable[[str, AnswerOptions], Turn]) -> ConversationState:
    """What `HistoryStore.reopen` has given, for `ClientEngine.restore`.

    Args:
        turn_of: makes a question's tokens from its text and what was asked of its answer, after the text before it.
    """
    parts = [answer for answer in stored.answers if answer.is_part]
    tokens: list[int] = []
    turns = []
    for answer in parts:
        if answer.tokens:
            turns.append(len(tokens))
            tokens += answer.tokens
    waiting = [answer for answer in parts if answer.standing.is_open]
    return ConversationState(
        tokens,
        [BY_LETTER[letter] for answer in parts for letter in answer.provenance.decode()],
        turns,
        [_job(answer, turn_of(answer.question, answer.options)) for answer in waiting],
        is_begun=bool(waiting and waiting[0].tokens),
    )


def _job(answer: StoredAnswer, turn: Turn) -> Job:
    settings = answer.options.settings()
    if answer.stopped_at is not None:
        settings = replace(settings, max_tokens=answer.stopped_at)
    question = answer.question_tokens
    return Job(
        turn,
        settings,
        written=list(answer.waiting),
        finish=Finish[answer.finish.upper()] if answer.finish else Finish.UNFINISHED,
        verified=list(answer.tokens[question + answer.decided_from :]),
        corrected=answer.is_corrected,
        shown=answer.shown,
        kept=answer.kept,
        left=not answer.finish or answer.finish == "unfinished",
    )
