"""Makes the text of a kept answer as surfaces and the conversation need it to continue. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from moa_shared.protocol.finish_rule import Finish

from moa_client.conversation.answer_decoder import AnswerDecoder
from moa_client.conversation.answer_text import AnswerText
from moa_client.history.records import StoredAnswer


def reopened(stored: StoredAnswer, number: int, decode: Callable[[Sequence[int]], str]) -> AnswerDecoder:
    """A kept answer as it was shown, with what decodes its further events.

    Args:
        number: in its conversation, from 1.
        decode: text of some tokens.
    """
    text = AnswerText(
        stored.question,
        number,
        stored.options,
        Finish[stored.finish.upper()] if stored.finish else Finish.UNFINISHED,
        stored.text,
        stored.provisional,
        tokens=stored.answer_tokens,
        waiting=tuple(stored.waiting),
        is_running=False,
        is_unsettled=stored.standing.is_open,
    )
    decoder = AnswerDecoder(text, decode)
    if stored.standing.is_open:
        decoder.restore(stored.tokens[stored.question_tokens :], stored.waiting)
        text.decided = text.tokens - stored.decided_from
    text.ended = text.committed + text.provisional
    return decoder
