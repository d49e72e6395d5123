"""Makes the text of a kept answer as surfaces and the conversation need it to continue. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from moa_shared.protocol.finish_rule import Finish
from moa_shared.text.text_stream import TextStream

from moa_client.conversation.answer_decoder import AnswerDecoder
from moa_client.conversation.answer_text import AnswerText
from moa_client.conversation.text_runs import BY_LETTER, TextRun, fitted, runs_of
from moa_client.history.records import StoredAnswer

MOST_ATTRIBUTED = 4096  # tokens of the newest answers, decoded again: 36 ms with the default model's tokenizer


def attributed(answers: Sequence[StoredAnswer]) -> int:
    """How many answers come before those whose writers are told."""
    tokens = 0
    for count in range(len(answers), 0, -1):
        tokens += answers[count - 1].answer_tokens
        if tokens > MOST_ATTRIBUTED:
            return count
    return 0


def reopened(
    stored: StoredAnswer, number: int, decode: Callable[[Sequence[int]], str], *, has_runs: bool = False
) -> AnswerDecoder:
    """A kept answer as it was shown, with what decodes its further events.

    Args:
        number: in its conversation, from 1.
        decode: text of some tokens.
        has_runs: tell who wrote it.
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
        runs=_runs(stored, decode) if has_runs else (),
        versions=stored.versions,
    )
    decoder = AnswerDecoder(text, decode)
    if stored.standing.is_open:
        decoder.restore(stored.tokens[stored.question_tokens :], stored.waiting)
        text.decided = text.tokens - stored.decided_from
    text.ended = text.committed + text.provisional
    return decoder


def _runs(stored: StoredAnswer, decode: Callable[[Sequence[int]], str]) -> tuple[TextRun, ...]:
    stream, start = TextStream(decode, stored.options.stop), stored.question_tokens
    lengths = [len(stream.push((token,))) for token in stored.tokens[start:]]
    return fitted(
        runs_of(lengths, [BY_LETTER[letter] for letter in stored.provenance[start:].decode()]), len(stored.text)
    )
