"""The JSON objects of OpenAI's API that an answer is sent as: whole, or as the chunks of a stream. Pure.

What only this endpoint has is in the field `moa`, which clients that do not know it leave alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moa_client.endpoint.progress import AnswerProgress
from moa_client.endpoint.tool_answer import Fields, ToolAnswer

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": waiting\n\n"  # a comment, which clients skip


def event(fields: Mapping[str, Any]) -> bytes:
    """A server-sent event."""
    return b"data: " + json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


@dataclass(frozen=True, slots=True)
class ResponseHeader:
    """What all objects of one answer have in common.

    Args:
        identifier: of the answer; `created`: in seconds since 1970.
        fingerprint: of the model and how it is computed with.
        prompt_tokens: of the request; `seed`: of the answer.
    """

    identifier: str
    created: int
    model: str
    fingerprint: str
    prompt_tokens: int
    seed: int

    def fields(self, kind: str) -> Fields:
        """The first fields of an object."""
        return {
            "id": self.identifier,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


class ChatCompletionSchema:
    """Objects of a chat."""

    whole, chunk, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl-"

    @staticmethod
    def choice(text: str, reason: str) -> Fields:
        """The only choice of a whole answer."""
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}

    @staticmethod
    def part(text: str | None, reason: str | None, *, is_first: bool = False) -> Fields:
        """The only choice of a chunk; no text: it says nothing."""
        delta: Fields = {"role": "assistant"} if is_first else {}
        if text is not None:
            delta["content"] = text
        return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}


class TextForm:
    """Objects of a text."""

    whole, chunk, prefix = "text_completion", "text_completion", "cmpl-"

    @staticmethod
    def choice(text: str, reason: str) -> Fields:
        """The only choice of a whole answer."""
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}

    @staticmethod
    def part(text: str | None, reason: str | None, *, is_first: bool = False) -> Fields:
        """The only choice of a chunk."""
        return {"index": 0, "text": text or "", "logprobs": None, "finish_reason": reason}


Form = type[ChatCompletionSchema] | type[TextForm]


def whole_answer(form: Form, heading: ResponseHeader, parts: ToolAnswer | None, progress: AnswerProgress) -> Fields:
    """An answer that is over.

    Args:
        parts: reads its calls; None: its text is sent as it is.
    """
    text, reason = progress.text.committed + progress.text.provisional, progress.reason or ""
    if parts is None:
        choice = form.choice(text, reason)
    else:
        parts.push(text)
        parts.finish()
        choice = {"index": 0, "message": parts.message(), "logprobs": None, "finish_reason": parts.reason(reason)}
    return {
        **heading.fields(form.whole),
        "choices": [choice],
        "usage": usage(heading, progress),
        "moa": {"seed": heading.seed, **_verification(progress)},
    }


def usage(heading: ResponseHeader, progress: AnswerProgress) -> Fields:
    """How many tokens there were."""
    tokens = progress.text.tokens + len(progress.text.waiting)
    return {
        "prompt_tokens": heading.prompt_tokens,
        "completion_tokens": tokens,
        "total_tokens": heading.prompt_tokens + tokens,
    }


class Chunks:
    """Makes the chunks of one stream, each with what has come since the one before.

    Args:
        with_usage: the last chunk says how many tokens there were.
        with_provisional: chunks also have the text that the server may take back.
        parts: reads the answer's calls; None: its text is sent as it is.
    """

    def __init__(
        self,
        form: Form,
        heading: ResponseHeader,
        *,
        with_usage: bool,
        with_provisional: bool,
        parts: ToolAnswer | None = None,
    ) -> None:
        self._parts = parts
        self._form = form
        self._heading = heading
        self._with_usage = with_usage
        self._with_provisional = with_provisional
        self._sent = 0  # characters of committed text
        self._shown: Fields = {}  # of provisional text

    def first(self) -> bytes:
        """Begins the answer."""
        text = "" if self._parts is None else None  # with calls there may be none
        return self._event([self._form.part(text, None, is_first=True)], {"seed": self._heading.seed})

    def next(self, progress: AnswerProgress) -> bytes:
        """What is new; empty: nothing that this stream has."""
        committed, moa = progress.text.committed, self._news(progress)
        piece, self._sent = committed[self._sent :], len(committed)
        if self._parts is not None:
            return self._deltas(self._parts.push(piece))
        if not piece and not moa:
            return b""
        return self._event([self._form.part(piece, None)] if piece else [], moa)

    def last(self, progress: AnswerProgress) -> bytes:
        """Ends an answer that has ended: with its unverified text, if that is how it ends."""
        end, reason = b"", progress.reason or ""
        if self._parts is not None:
            end = self._deltas([*self._parts.push(progress.text.provisional), *self._parts.finish()])
            reason = self._parts.reason(reason)
        elif progress.text.provisional:
            end = self._event([self._form.part(progress.text.provisional, None)], {})
        end += self._event([self._form.part(None, reason)], _verification(progress))
        if self._with_usage:
            end += event(
                {
                    **self._heading.fields(self._form.chunk),
                    "choices": [],
                    "usage": usage(self._heading, progress),
                }
            )
        return end + DONE

    def _deltas(self, deltas: list[Fields]) -> bytes:
        choices = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None} for delta in deltas]
        return b"".join([self._event([choice], {}) for choice in choices])

    def _news(self, progress: AnswerProgress) -> Fields:
        """What this stream says of provisional text, if that has changed."""
        if not self._with_provisional or progress.is_over:
            return {}
        shown = {
            "provisional": progress.text.provisional,
            "waiting": len(progress.text.waiting),
            "withdrawn": progress.withdrawn,
            "link": progress.link.value,
        }
        if shown == self._shown:
            return {}
        self._shown = shown
        return shown

    def _event(self, choices: list[Fields], moa: Fields) -> bytes:
        fields = {**self._heading.fields(self._form.chunk), "choices": choices}
        if self._with_usage:
            fields["usage"] = None
        if moa:
            fields["moa"] = moa
        return event(fields)


def _verification(progress: AnswerProgress) -> Fields:
    if progress.is_verified:
        return {"verified": True}
    return {"verified": False, "verified_characters": len(progress.text.committed)}
