"""OpenAI's older APIs, in and out: completions of chats and of texts. Pure but for a random seed.

Every value that cannot be used is refused with the name of its parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from moa_shared.sampling.settings import MOST_LIKELIEST
from pydantic import BeforeValidator, Field

from moa_client.conversation.options import AnswerOptions
from moa_client.endpoint.answer import Answer, Fields, Form, ToldToken, event
from moa_client.endpoint.ask import AskedReasoning, ChatAsk
from moa_client.endpoint.fields import MOST_MESSAGES, RequestFields, refused
from moa_client.endpoint.openai_fields import (
    AnswerRequest,
    Effort,
    FormKind,
    Limit,
    Message,
    NamedSchema,
    ToolField,
    as_prompts,
    conversation,
    tool_offer,
)
from moa_client.tools.answer_reader import CallPiece, Piece, ReasoningPiece, TextPiece, parted

TEXT_TOKENS = 16  # of a completion, if absent
DONE = b"data: [DONE]\n\n"


class StreamOptions(RequestFields):
    include_usage: bool = False


class ResponseFormat(RequestFields):
    type: FormKind
    json_schema: NamedSchema | None = None


class ChoicesRequest(AnswerRequest):
    stream_options: StreamOptions = StreamOptions()
    response_format: ResponseFormat = ResponseFormat(type="text")

    def form(self, answer: Answer) -> ChatForm:
        kind = ChatForm if isinstance(self, ChatRequest) else TextForm
        return kind(answer, with_usage=self.stream_options.include_usage)

    def chosen(self, most_tokens: int, likeliest: int | None) -> AnswerOptions:
        form = self.response_format
        return self.answer_options(most_tokens, "response_format", form.type, form.json_schema, likeliest)


class ChatRequest(ChoicesRequest):
    messages: list[Message] = Field(min_length=1, max_length=MOST_MESSAGES)
    max_tokens: Limit = 0
    max_completion_tokens: Limit = 0
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=MOST_LIKELIEST)
    tools: list[ToolField] = Field(default_factory=list)
    tool_choice: Any = None
    parallel_tool_calls: bool = True
    reasoning_effort: Effort | None = None
    thinking_token_budget: int | None = Field(None, ge=0, lt=1 << 31)

    def ask(self) -> ChatAsk:
        functions = [tool.function for tool in self.tools]
        offer = tool_offer(functions, self.tool_choice, is_parallel=self.parallel_tool_calls)
        if offer.tools and self.structured_outputs is not None:
            words = "an answer of this form calls no tools: use response_format, or tool_choice: 'none'"
            raise refused("structured_outputs", words)
        likeliest = self.top_logprobs if self.logprobs else None
        return ChatAsk(
            model=self.model,
            stream=self.stream,
            options=self.chosen(self.max_completion_tokens or self.max_tokens, likeliest),
            messages=conversation(self.messages),
            offer=offer,
            reasoning=AskedReasoning(self.reasoning_effort, self.thinking_token_budget),
            unverified=self.moa.unverified,
        )


class TextRequest(ChoicesRequest):
    """A request for the continuation of a text. Programs say false where they want no chances."""

    texts: Annotated[list[str | list[int]], BeforeValidator(as_prompts)] = Field(alias="prompt", max_length=1)
    max_tokens: Limit = TEXT_TOKENS
    logprobs: Annotated[int | None, BeforeValidator(lambda value: None if value is False else value)] = Field(
        None, ge=0, le=MOST_LIKELIEST
    )

    def ask(self) -> ChatAsk:
        return ChatAsk(
            model=self.model,
            stream=self.stream,
            options=self.chosen(self.max_tokens, self.logprobs),
            text=self.texts[0],
            unverified=self.moa.unverified,
        )


class ChatForm(Form):
    """The next message of a chat. `with_usage`: the last chunk of a stream says how many tokens there were."""

    prefix, object, chunk_object = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def __init__(self, answer: Answer, *, with_usage: bool) -> None:
        super().__init__(answer)
        self._level = ""  # that was told
        self._listed = 0  # tokens whose chances were sent
        self._with_usage = with_usage

    def whole(self) -> Fields:
        choice = {"index": 0, **self.choice(), "finish_reason": self.answer.reason}
        moa = {"seed": self.answer.seed, **self._news(), **self.answer.verification}
        return {**self._fields(self.object), "choices": [choice], "usage": self._usage(), "moa": moa}

    def first(self) -> bytes:
        content = {} if self.answer.has_parts else {"content": ""}  # with calls there may be none
        return self._event([self.delta({"role": "assistant", **content})], {"seed": self.answer.seed})

    def next(self) -> bytes:
        choices, moa = self._choices(), self._news()
        return self._event(choices, moa) if choices or moa else b""

    def last(self) -> bytes:
        end = self.delta({}, self.answer.reason)
        choices = [*self._choices(), end | {"logprobs": self._chances()}]
        body = self._event(choices, self._news() | self.answer.verification)
        if self._with_usage:
            body += event({**self._fields(self.chunk_object), "choices": [], "usage": self._usage()})
        return body + DONE

    def _choices(self) -> list[Fields]:
        """What is new, a choice for each piece."""
        choices = [self.delta(self._delta(piece)) for piece in self.answer.take()]
        if choices:
            choices[-1]["logprobs"] = self._chances()
        return choices

    def choice(self) -> Fields:
        reasoning, text, calls = parted(self.answer.take())
        content = text or None if self.answer.has_parts else text
        message: Fields = {"role": "assistant", "content": content, "refusal": None}
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = [self._call(piece) for piece in calls]
        return {"message": message, "logprobs": self._chances()}

    def _delta(self, piece: Piece) -> Fields:
        match piece:
            case ReasoningPiece(text):
                return {"reasoning_content": text}
            case TextPiece(text):
                return {"content": text}
            case CallPiece(index):
                return {"tool_calls": [{"index": index, **self._call(piece)}]}

    def _call(self, piece: CallPiece) -> Fields:
        function = {"name": piece.name, "arguments": piece.arguments}
        return {"id": self.answer.call_id(piece), "type": "function", "function": function}

    def delta(self, delta: Fields, reason: str | None = None) -> Fields:
        """The choice of a chunk that adds this."""
        return {"delta": delta, "logprobs": None, "finish_reason": reason}

    def logprobs(self, tokens: Sequence[ToldToken]) -> Fields:
        return {"content": [_of_chat(token) for token in tokens], "refusal": None}

    def _chances(self) -> Fields | None:
        """What is new of the chances of tokens whose text was sent; None: nothing, or nobody asks."""
        if self.answer.told is None:
            return None
        tokens = self.answer.told.tokens[self._listed :]
        if self.answer.reason is None:
            tokens = [each for each in tokens if each.end <= len(self.answer.text.committed)]
        self._listed += len(tokens)
        return self.logprobs(tokens) if tokens else None

    def _fields(self, kind: str) -> Fields:
        return {
            "id": self.prefix + self.answer.identifier,
            "object": kind,
            "created": self.answer.created,
            "model": self.answer.model,
            "system_fingerprint": self.answer.fingerprint,
        }

    def _news(self) -> Fields:
        """In which execution the answer is continued, if that has changed."""
        before, self._level = self._level, self.answer.level
        return {"execution": self._level} if self._level != before else {}

    def _usage(self) -> Fields:
        prompt, tokens = self.answer.prompt_tokens, self.answer.completion_tokens
        usage: Fields = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
        if self.answer.reasoning_tokens is not None:
            usage["completion_tokens_details"] = {"reasoning_tokens": self.answer.reasoning_tokens}
        return usage

    def _event(self, choices: list[Fields], moa: Fields) -> bytes:
        """An event for each of some choices, of which the last has `moa`; without any, one for that alone."""
        usage = {"usage": None} if self._with_usage else {}
        fields = self._fields(self.chunk_object)
        numbered = [{"index": 0, **choice} for choice in choices]
        before = [event({**fields, "choices": [choice], **usage}) for choice in numbered[:-1]]
        last = {**fields, "choices": numbered[-1:], **usage, **({"moa": moa} if moa else {})}
        return b"".join([*before, event(last)])


class TextForm(ChatForm):
    prefix, object, chunk_object = "cmpl-", "text_completion", "text_completion"

    def choice(self) -> Fields:
        return {"text": parted(self.answer.take())[1], "logprobs": self._chances()}

    def delta(self, delta: Fields, reason: str | None = None) -> Fields:
        return {"text": delta.get("content", ""), "logprobs": None, "finish_reason": reason}

    def logprobs(self, tokens: Sequence[ToldToken]) -> Fields:
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [token.chance for token in tokens],
            "top_logprobs": [_by_text(token) for token in tokens],
            "text_offset": [token.start for token in tokens],
        }


def _of_chat(token: ToldToken) -> Fields:
    likeliest = [{"token": _decoded(data), "logprob": chance, "bytes": list(data)} for data, chance in token.likeliest]
    data = list(token.text.encode())
    return {"token": token.text, "logprob": token.chance, "bytes": data, "top_logprobs": likeliest}


def _by_text(token: ToldToken) -> dict[str, float]:
    """The likeliest tokens by their text, and the token itself; of several with one text the likeliest."""
    by_text: dict[str, float] = {}
    for data, chance in token.likeliest:
        by_text.setdefault(_decoded(data), chance)
    if token.chance not in by_text.values():
        by_text.setdefault(token.text, token.chance)
    return by_text


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "replace")
