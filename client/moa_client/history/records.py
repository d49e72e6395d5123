"""What the history holds of conversations, in plain values. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from moa_client.conversation.options import AnswerOptions

PROMPT_CODE = ord("P")  # of a token of the user's turn; see `StoredAnswer.provenance`


class AnswerStatus(Enum):
    """What is known of an answer."""

    RUNNING = "running"  # or the program was killed while it was
    UNVERIFIED = "unverified"  # it ended without the server, which has not decided it yet
    DECIDED = "decided"  # nothing about it will change
    REFUSED = "refused"  # the server will not verify it; it is no part of the conversation

    @property
    def is_open(self) -> bool:
        return self in (AnswerStatus.RUNNING, AnswerStatus.UNVERIFIED)


@dataclass(frozen=True, slots=True)
class ConversationOrigin:
    """Which model a conversation is with.

    Args:
        model: its name.
        target: fingerprint of its weights; `tokenizer`: hash of its tokenizer.
        execution: level, such as int8; empty: no server has reported it.
        server: address of the newest server.
        system: the system prompt; None: the model's own.
    """

    model: str
    target: bytes = b""
    tokenizer: bytes = b""
    execution: str = ""
    server: str = ""
    system: str | None = None


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """One question and what is known of its answer.

    Args:
        key: names it in the history, for later calls.
        question: the user's text.
        options: as asked.
        tokens: committed ones: the question's (none before a server has read it, or the answer has begun alone), then
            the answer's.
        provenance: of each of these tokens, the first letter of its `Provenance`.
        text: the committed text of the answer.
        waiting: provisional tokens after the committed ones; `provisional`: their text.
        standing: whether it is decided.
        finish: why it ended, as in the events for programs ("end_of_text"); empty: it has not.
        outcome: what became of it after it had ended without the server ("confirmed"); empty: it did not, or is open.
        decided_from: committed tokens of the answer when it ended without the server.
        stopped_at: tokens of the answer where the user stopped it without the server; None: not so.
        shown: tokens that were shown as provisional; `kept`: those of them that are committed.
        is_corrected: provisional text was withdrawn after it had ended.
        asked, ended: when, in seconds since 1970; None: it has not ended.
        figures: what it cost.
        versions: question and text of the answers in whose place it was asked for, oldest first.
    """

    key: int
    question: str
    options: AnswerOptions
    tokens: Sequence[int] = ()
    provenance: bytes = b""
    text: str = ""
    waiting: Sequence[int] = ()
    provisional: str = ""
    standing: AnswerStatus = AnswerStatus.RUNNING
    finish: str = ""
    outcome: str = ""
    decided_from: int = 0
    stopped_at: int | None = None
    shown: int = 0
    kept: int = 0
    is_corrected: bool = False
    asked: float = 0.0
    ended: float | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    versions: tuple[tuple[str, str], ...] = ()

    @property
    def question_tokens(self) -> int:
        return len(self.provenance) - len(self.provenance.lstrip(b"P"))

    @property
    def is_part(self) -> bool:
        """Whether the conversation that continues from here has it: not, if the question got no answer at all."""
        return bool(self.tokens) or self.standing.is_open

    @property
    def answer_tokens(self) -> int:
        return len(self.tokens) - self.question_tokens


@dataclass(frozen=True, slots=True)
class StoredConversation:
    """All that is kept of a conversation; times in seconds since 1970."""

    identifier: str
    title: str
    created: float
    updated: float
    origin: ConversationOrigin
    answers: tuple[StoredAnswer, ...]


@dataclass(frozen=True, slots=True)
class Summary:
    """A conversation in a list.

    Args:
        title: as set, else the first line of the first question.
        answers: number of questions; `unverified`: answers that a server is still to decide.
    """

    identifier: str
    title: str
    created: float
    updated: float
    model: str
    server: str
    answers: int
    unverified: int


@dataclass(frozen=True, slots=True)
class Hit:
    """An answer that a search has found.

    Args:
        number: of the answer in its conversation, from 1.
        snippet: a part of question or answer; words that were searched for are between START and END of `store`.
    """

    identifier: str
    title: str
    number: int
    asked: float
    snippet: str
