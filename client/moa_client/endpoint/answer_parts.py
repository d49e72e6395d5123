"""The parts of an answer as its text comes: reasoning, text and calls, whichever API they are sent in. Pure.

State of one answer: what was read of it so far. Invariant: the parts of a stream add up to the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from moa_client.tools.answer_reader import AnswerReader
from moa_client.tools.answer_split import AnswerSplit
from moa_client.tools.formats.base import ToolFormat
from moa_client.tools.ids import call_id
from moa_client.tools.offer import ToolOffer
from moa_client.tools.reading.markers import have_any
from moa_client.tools.reading.pieces import CallArguments, CallBroken, CallEnded, CallStarted, Piece, TextPiece
from moa_client.tools.thinking import ReasoningPiece, Thinking, ThinkingReader

Part = ReasoningPiece | TextPiece | CallStarted | CallArguments | CallEnded


@dataclass(frozen=True, slots=True)
class AnswerMarkup:
    """How a model marks the parts of one answer.

    Args:
        form: of calls; None: none are read.
        offer: the tools that it may call.
        thinking: marks reasoning; None: none is known.
        is_thinking: the prompt has opened reasoning.
    """

    form: ToolFormat | None
    offer: ToolOffer
    thinking: Thinking | None
    is_thinking: bool

    def has_any(self, special_tokens: Mapping[str, int]) -> bool:
        """Whether some of these tokens, which readers are not shown otherwise, are marks."""
        form, thinking = self.form, self.thinking
        marks: list[str] = []
        if form is not None:
            marks += form.marks
        if thinking is not None:
            marks += [*thinking.openings, *thinking.closings]
        return have_any(marks, special_tokens)

    def split(self) -> AnswerSplit | None:
        """The answer before its first token, to tell its reasoning from all else; None: it has none."""
        if self.thinking is None:
            return None
        return AnswerSplit(ThinkingReader(self.thinking, is_open=self.is_thinking, drops_others=True))

    def reader(self) -> AnswerReader:
        """A reader of the answer."""
        thinking = None if self.thinking is None else ThinkingReader(self.thinking, is_open=self.is_thinking)
        return AnswerReader(thinking, None if self.form is None else self.form.reader(self.offer.tools))


@dataclass(slots=True)
class Call:
    """A call as far as it was read.

    Args:
        arguments: a JSON object, once the call is whole.
    """

    id: str
    name: str
    arguments: str = ""

    @property
    def values(self) -> dict[str, Any]:
        """The arguments by name, as far as they came."""
        try:
            values = from_json(self.arguments or "{}", allow_partial="trailing-strings")
        except ValueError:
            return {}
        return values if isinstance(values, dict) else {}


class AnswerParts:
    """The parts of one answer.

    Args:
        identifier: of the answer: the ids of its calls depend on it.
    """

    def __init__(self, markup: AnswerMarkup, identifier: str) -> None:
        self.text = ""
        self.reasoning = ""
        self.calls: list[Call] = []
        self._reader = markup.reader()
        self._most_calls = None if markup.offer.is_parallel else 1
        self._identifier = identifier
        self._is_broken = False

    def push(self, text: str) -> list[Part]:
        """Reads more text; what has become certain."""
        return self._taken(self._reader.push(text))

    def finish(self) -> list[Part]:
        """Ends the text; the rest of it."""
        return self._taken(self._reader.finish())

    def reason(self, reason: str) -> str:
        """Why the answer has ended: "tool_calls" where it ends with calls, "length" where one is cut.

        Args:
            reason: why its text has.
        """
        if self._is_broken:
            return "length"
        return "tool_calls" if self.calls and reason == "stop" else reason

    def _taken(self, pieces: list[ReasoningPiece | Piece]) -> list[Part]:
        return [part for piece in pieces if (part := self._part(piece)) is not None]

    def _part(self, piece: ReasoningPiece | Piece) -> Part | None:
        """What a piece adds; None: nothing."""
        match piece:
            case ReasoningPiece(text):
                self.reasoning += text
            case TextPiece(text):
                self.text += text
            case CallBroken(index, text):
                self._is_broken = True
                if index < len(self.calls) or self._is_one_too_many(index):
                    return None  # its arguments are given as far as they came
                self.text += text
                return TextPiece(text)
            case CallStarted(index) | CallArguments(index) | CallEnded(index) if self._is_one_too_many(index):
                return None
            case CallStarted(index, name):
                self.calls.append(Call(call_id(self._identifier, index), name))
            case CallArguments(index, text):
                self.calls[index].arguments += text
        return piece

    def _is_one_too_many(self, index: int) -> bool:
        return self._most_calls is not None and index >= self._most_calls
