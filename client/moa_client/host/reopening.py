"""Makes the text of a kept answer as surfaces and the conversation need it to continue. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from moa_shared.protocol.finish_rule import Finish

from moa_client.conversation.answer_text import AnswerText
from moa_client.conversation.transcript import Transcript
from moa_client.history.records import StoredAnswer


def reopened(
    stored: StoredAnswer, number: int, decode: Callable[[Sequence[int]], str]
) -> tuple[AnswerText, Transcript]:
    """A kept answer as it was shown, and the transcript that continues it.

    Args:
        number: in its conversation, from 1.
        decode: text of some tokens.
    """
    finish = Finish[stored.finish.upper()] if stored.finish else Finish.UNFINISHED
    transcript = Transcript(decode, stored.options.stop, stored.question)
    if stored.standing.is_open:
        answer = stored.tokens[stored.question_tokens :]
        transcript.restore(answer, stored.text, stored.waiting, stored.decided_from)
    text = AnswerText(stored.question, number, stored.options)
    text.finish = finish
    text.committed, text.provisional = stored.text, stored.provisional
    text.waiting = len(stored.waiting)
    text.is_running = False
    text.is_unsettled = stored.standing.is_open
    text.ended = stored.text + stored.provisional
    return text, transcript
