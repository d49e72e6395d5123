"""The JSON objects of OpenAI's API that an answer is sent as: whole, or as the chunks of a stream. Pure.

What only this endpoint has is in the field `moa`, which clients that do not know it leave alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from starlette.responses import Response

from moa_client.endpoint.answer_parts import AnswerParts, Part
from moa_client.endpoint.asked import AnswerHeader, Fields
from moa_client.endpoint.events import EVENT_STREAM, KEEP_ALIVE, event
from moa_client.endpoint.openai.logprobs import chat_logprobs, text_logprobs
from moa_client.endpoint.progress import AnswerProgress
from moa_client.endpoint.told_tokens import ToldToken
from moa_client.tools.reading.pieces import CallArguments, CallStarted, TextPiece
from moa_client.tools.thinking import ReasoningPiece
from moa_client.web.error_form import RequestError

DONE = b"data: [DONE]\n\n"


class OpenAiForm:
    """An answer as one of OpenAI's older APIs has it; implements `AnswerForm`.

    State: what its stream has sent.

    Args:
        index: of the answer among those of its response.
        with_usage: the last chunk says how many tokens there were.
        with_provisional: chunks also have the text that the server may take back.
    """

    prefix: str
    object: str
    chunk_object: str
    media_type = EVENT_STREAM
    keep_alive = KEEP_ALIVE

    def __init__(
        self, header: AnswerHeader, *, index: int = 0, with_usage: bool = False, with_provisional: bool = False
    ) -> None:
        self._header = header
        self._fingerprint = header.fingerprint  # as was sent last
        self._index = index
        self._with_usage = with_usage
        self._with_provisional = with_provisional
        self._sent = 0  # characters of committed text
        self._listed = 0  # tokens whose chances were sent
        self._shown: Fields = {}  # of provisional text

    def whole(self, progress: AnswerProgress) -> Fields:
        """An answer that is over."""
        return {**self.completion([self.choice(progress)], [progress]), "moa": self.moa(progress)}

    def completion(self, choices: Sequence[Fields], answers: Sequence[AnswerProgress]) -> Fields:
        """The object that whole answers are sent in."""
        for each in answers:
            self._follow(each)
        return {**self._fields(self.object), "choices": choices, "usage": self._usage(answers)}

    def choice(self, progress: AnswerProgress) -> Fields:
        """A whole answer as one of `choices`."""
        return {"index": self._index, **self._choice(progress)}

    def moa(self, progress: AnswerProgress) -> Fields:
        """What only this endpoint says of a whole answer."""
        execution = {"execution": progress.level} if progress.level else {}
        return {"seed": self._header.seed, **execution, **verification(progress, self._verified(progress))}

    def first(self) -> bytes:
        """Begins a stream."""
        return self._event([self._opening()], {"seed": self._header.seed})

    def next(self, progress: AnswerProgress) -> bytes:
        """What is new; empty: nothing that this stream has."""
        committed = progress.text.committed
        piece, self._sent = committed[self._sent :], len(committed)
        choices = self._repeated(progress) + (self._deltas(piece) if piece else [])
        if piece and choices and (chances := self._chances(progress, self._sent)) is not None:
            choices[-1]["logprobs"] = chances
        moa = {**self._follow(progress), **self._news(progress)}
        if not choices and not moa:
            return b""
        events = [self._event([choice], {}) for choice in choices[:-1]]
        return b"".join([*events, self._event(choices[-1:], moa)])

    def last(self, progress: AnswerProgress) -> bytes:
        """Ends a stream: with its unverified text, if that is how it ends."""
        return self.end(progress) + self.close([progress])

    def end(self, progress: AnswerProgress) -> bytes:
        """Ends an answer in a stream."""
        moa = {**self._follow(progress), **verification(progress, self._verified(progress))}
        rest = b"".join([self._event([choice], {}) for choice in self._rest(progress.text.provisional)])
        closing = self._end(self._reason(progress))
        closing["logprobs"] = self._chances(progress)
        return rest + self._event([closing], moa)

    def close(self, answers: Sequence[AnswerProgress]) -> bytes:
        """Ends a stream whose answers have ended in it."""
        if not self._with_usage:
            return DONE
        return event({**self._fields(self.chunk_object), "choices": [], "usage": self._usage(answers)}) + DONE

    def failed(self, error: RequestError) -> bytes:
        """Ends a stream whose answer has failed."""
        return event(error.fields)

    def refusal(self, error: RequestError) -> Response:
        """The response where the answer has failed before anything was sent."""
        return error.response()

    def _choice(self, progress: AnswerProgress) -> Fields:
        """The only choice of a whole answer."""
        raise NotImplementedError

    def _opening(self) -> Fields:
        """The choice of the first chunk."""
        raise NotImplementedError

    def _deltas(self, text: str) -> list[Fields]:
        """The choices of the chunks that some text becomes."""
        raise NotImplementedError

    def _repeated(self, progress: AnswerProgress) -> list[Fields]:
        """The choices of the chunks that repeat the prompt; none: it is not repeated, or was."""
        return []

    def _chances(self, progress: AnswerProgress, sent: int | None = None) -> Fields | None:
        """What is new of the chances of tokens; None: nothing, or nobody asks.

        Args:
            sent: characters of text; None: all that there is.
        """
        if progress.told is None:
            return None
        first = self._listed
        new = [each for each in progress.told.tokens[first:] if sent is None or each.end <= sent]
        self._listed += len(new)
        return self._logprobs(progress, new)

    def _logprobs(self, progress: AnswerProgress, tokens: Sequence[ToldToken]) -> Fields | None:
        """The object of these tokens; None: there are none."""
        raise NotImplementedError

    def _rest(self, text: str) -> list[Fields]:
        """The same for the last text."""
        return self._deltas(text) if text else []

    def _end(self, reason: str) -> Fields:
        """The choice of the last chunk."""
        raise NotImplementedError

    def _reason(self, progress: AnswerProgress) -> str:
        return progress.reason or ""

    def _verified(self, progress: AnswerProgress) -> int:
        """How many characters of the answer the server has verified, if not all."""
        return len(progress.text.committed)

    def _ahead(self, progress: AnswerProgress) -> Fields:
        """What provisional text is, and how many of its characters are likely to be the target's."""
        return {"provisional": progress.text.provisional, "likely": progress.text.likely}

    def _fields(self, kind: str) -> Fields:
        """The first fields of an object."""
        return {
            "id": self.prefix + self._header.identifier,
            "object": kind,
            "created": self._header.created,
            "model": self._header.model,
            "system_fingerprint": self._fingerprint,
        }

    def _follow(self, progress: AnswerProgress) -> Fields:
        """Says in which execution the answer is continued, if that has changed."""
        before, self._fingerprint = self._fingerprint, progress.fingerprint(self._header.fingerprint)
        return {"execution": progress.level} if self._fingerprint != before else {}

    def _usage(self, answers: Sequence[AnswerProgress]) -> Fields:
        """How many tokens there were; those of a question count once."""
        prompt, tokens = self._header.prompt_tokens, sum(answer.completion_tokens for answer in answers)
        usage: Fields = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
        reasoning = [each.reasoning_tokens for each in answers if each.reasoning_tokens is not None]
        if reasoning:
            usage["completion_tokens_details"] = {"reasoning_tokens": sum(reasoning)}
        return usage

    def _news(self, progress: AnswerProgress) -> Fields:
        """What this stream says of provisional text, if that has changed."""
        if not self._with_provisional or progress.is_over:
            return {}
        shown = {
            **self._ahead(progress),
            "waiting": len(progress.text.waiting),
            "withdrawn": progress.withdrawn,
            "link": progress.link.value,
        }
        if shown == self._shown:
            return {}
        self._shown = shown
        return shown

    def _event(self, choices: list[Fields], moa: Fields) -> bytes:
        numbered = [{"index": self._index, **choice} for choice in choices]
        fields = {**self._fields(self.chunk_object), "choices": numbered}
        if self._with_usage:
            fields["usage"] = None
        if moa:
            fields["moa"] = moa
        return event(fields)


class ChatForm(OpenAiForm):
    """The next message of a chat.

    Args:
        parts: of the answer; None: its text is sent as it is.
    """

    prefix, object, chunk_object = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def __init__(self, header: AnswerHeader, parts: AnswerParts | None, index: int = 0, **stream: bool) -> None:
        super().__init__(header, index=index, **stream)
        self._parts = parts
        self._verified_characters: int | None = None  # of the answer's own text, once it is over

    def _choice(self, progress: AnswerProgress) -> Fields:
        if self._parts is None:
            text = progress.text.committed + progress.text.provisional
            message: Fields = {"role": "assistant", "content": text, "refusal": None}
        else:
            self._verified(progress)  # reads what is committed
            self._parts.push(progress.text.provisional)
            self._parts.finish()
            message = message_fields(self._parts)
        return {"message": message, "logprobs": self._chances(progress), "finish_reason": self._reason(progress)}

    def _opening(self) -> Fields:
        content = {"content": ""} if self._parts is None else {}  # with calls there may be none
        return self._delta({"role": "assistant", **content})

    def _deltas(self, text: str) -> list[Fields]:
        if self._parts is None:
            return [self._delta({"content": text})]
        return self._of_parts(self._parts, self._parts.push(text))

    def _rest(self, text: str) -> list[Fields]:
        rest = super()._rest(text)
        return rest if self._parts is None else [*rest, *self._of_parts(self._parts, self._parts.finish())]

    def _end(self, reason: str) -> Fields:
        return self._delta({}, reason)

    def _reason(self, progress: AnswerProgress) -> str:
        reason = super()._reason(progress)
        return reason if self._parts is None else self._parts.reason(reason)

    def _logprobs(self, progress: AnswerProgress, tokens: Sequence[ToldToken]) -> Fields | None:
        return chat_logprobs(tokens)

    def _verified(self, progress: AnswerProgress) -> int:
        if self._parts is None:
            return super()._verified(progress)
        if self._verified_characters is None:
            self._parts.push(progress.text.committed[self._sent :])
            self._sent = len(progress.text.committed)
            self._verified_characters = len(self._parts.text)
        return self._verified_characters

    def _ahead(self, progress: AnswerProgress) -> Fields:
        if self._parts is None:
            return super()._ahead(progress)
        text = progress.text
        reasoning, answer = progress.ahead(text.provisional)
        likely = len(progress.ahead(text.provisional[: text.likely])[1])
        return {"provisional": answer, "provisional_reasoning": reasoning, "likely": likely}

    def _of_parts(self, whole: AnswerParts, parts: list[Part]) -> list[Fields]:
        deltas = [delta_fields(part, whole) for part in parts]
        return [self._delta(delta) for delta in deltas if delta]

    @staticmethod
    def _delta(delta: Fields, reason: str | None = None) -> Fields:
        return {"delta": delta, "logprobs": None, "finish_reason": reason}


class TextForm(OpenAiForm):
    """The continuation of a text."""

    prefix, object, chunk_object = "cmpl-", "text_completion", "text_completion"

    def __init__(self, header: AnswerHeader, index: int = 0, **stream: bool) -> None:
        super().__init__(header, index=index, **stream)
        self._has_repeated = False

    def _choice(self, progress: AnswerProgress) -> Fields:
        before = progress.echoed.tokens if progress.echoed is not None else []
        text = "".join([token.text for token in before])
        choice = self._part(text + progress.text.committed + progress.text.provisional, self._reason(progress))
        if progress.told is not None:
            answer = [replace(token, start=token.start + len(text)) for token in progress.told.tokens]
            choice["logprobs"] = text_logprobs([*before, *answer])
        return choice

    def _repeated(self, progress: AnswerProgress) -> list[Fields]:
        if progress.echoed is None or self._has_repeated or not progress.echoed.tokens:
            return []
        self._has_repeated = True
        part = self._part(progress.echoed.text)
        if progress.told is not None:
            part["logprobs"] = text_logprobs(progress.echoed.tokens)
        return [part]

    def _logprobs(self, progress: AnswerProgress, tokens: Sequence[ToldToken]) -> Fields | None:
        before = 0 if progress.echoed is None else progress.echoed.length
        return text_logprobs([replace(token, start=token.start + before) for token in tokens])

    def _opening(self) -> Fields:
        return self._part("")

    def _deltas(self, text: str) -> list[Fields]:
        return [self._part(text)]

    def _end(self, reason: str) -> Fields:
        return self._part("", reason)

    @staticmethod
    def _part(text: str, reason: str | None = None) -> Fields:
        return {"text": text, "logprobs": None, "finish_reason": reason}


def message_fields(parts: AnswerParts) -> Fields:
    """A whole answer as a message."""
    message: Fields = {"role": "assistant", "content": parts.text or None, "refusal": None}
    if parts.reasoning:
        message["reasoning_content"] = parts.reasoning
    if parts.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in parts.calls
        ]
    return message


def delta_fields(part: Part, whole: AnswerParts) -> Fields:
    """What a part adds to the message; empty: nothing.

    Args:
        whole: the answer that it is a part of.
    """
    match part:
        case ReasoningPiece(text):
            return {"reasoning_content": text}
        case TextPiece(text):
            return {"content": text}
        case CallStarted(index, name):
            call = {"id": whole.calls[index].id, "type": "function", "function": {"name": name, "arguments": ""}}
            return {"tool_calls": [{"index": index, **call}]}
        case CallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
        case _:
            return {}


def verification(progress: AnswerProgress, characters: int) -> Fields:
    """What is said of it; `characters`: that are verified, if not all."""
    return {"verified": True} if progress.is_verified else {"verified": False, "verified_characters": characters}
