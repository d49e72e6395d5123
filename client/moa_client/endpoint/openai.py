"""OpenAI's older APIs, in and out: completions of chats and of texts. Pure but for a random seed.

Every value that cannot be used is refused with the name of its parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from moa_shared.sampling.settings import MOST_LIKELIEST
from pydantic import BeforeValidator, Field

from moa_client.conversation.options import AnswerOptions
from moa_client.endpoint.answer import Answer, AnswerHeader, Fields, Form, event, parted, verification
from moa_client.endpoint.ask import ChatAsk
from moa_client.endpoint.fields import MOST_MESSAGES, RequestFields, missing, refused
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
from moa_client.endpoint.tokens import ToldToken
from moa_client.tools.answer_reader import CallPiece, Piece
from moa_client.tools.thinking import AskedReasoning, ReasoningPiece, TextPiece

TEXT_TOKENS = 16  # of a completion, if absent
DONE = b"data: [DONE]\n\n"


class ResponseFormat(RequestFields):
    type: FormKind
    json_schema: NamedSchema | None = None


class ChoicesRequest(AnswerRequest):
    """What requests for chats and for texts have."""

    response_format: ResponseFormat = ResponseFormat(type="text")

    def form(self, header: AnswerHeader) -> ChatForm:
        kind = ChatForm if isinstance(self, ChatRequest) else TextForm
        with_usage = self.stream_options is not None and self.stream_options.include_usage
        return kind(header, with_usage=with_usage, with_provisional=self.moa.provisional)

    def chosen(self, most_tokens: int, likeliest: int | None) -> AnswerOptions:
        form = self.response_format
        if form.type == "json_schema" and (form.json_schema is None or form.json_schema.json_schema is None):
            raise missing(f"response_format.json_schema{'.schema' if form.json_schema else ''}")
        return self.answer_options(most_tokens, "response_format", form.type, form.json_schema, likeliest)


class ChatRequest(ChoicesRequest):
    messages: list[Message] = Field(min_length=1, max_length=MOST_MESSAGES)
    max_tokens: Limit | None = None
    max_completion_tokens: Limit | None = None
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=MOST_LIKELIEST)
    tools: list[ToolField] = Field(default_factory=list)
    tool_choice: Any = None
    parallel_tool_calls: bool = True
    reasoning_effort: Effort | None = None
    thinking_token_budget: int | None = Field(None, ge=0, lt=1 << 31)

    def ask(self) -> ChatAsk:
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise refused("max_tokens", "it is the older name of max_completion_tokens: give one of them")
        if self.top_logprobs is not None and not self.logprobs:
            raise refused("top_logprobs", "only a request with logprobs: true may have it")
        functions = [tool.function for tool in self.tools]
        offer = tool_offer(functions, self.tool_choice, is_parallel=self.parallel_tool_calls)
        if offer.tools and self.structured_outputs is not None:
            words = "an answer of this form calls no tools: use response_format, or tool_choice: 'none'"
            raise refused("structured_outputs", words)
        if offer.tools and self.moa.provisional:
            raise refused("moa.provisional", "calls are not sent before they are verified: do not offer tools with it")
        most_tokens, likeliest = self.max_completion_tokens or self.max_tokens or 0, self.top_logprobs or 0
        return ChatAsk(
            model=self.model,
            stream=self.stream,
            options=self.chosen(most_tokens, likeliest if self.logprobs else None),
            messages=conversation(self.messages),
            offer=offer,
            reasoning=AskedReasoning(self.reasoning_effort, budget=self.thinking_token_budget),
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
    """The next message of a chat.

    Args:
        with_usage: the last chunk says how many tokens there were.
        with_provisional: chunks also have the text that the server may take back.
    """

    prefix, object, chunk_object = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def __init__(self, header: AnswerHeader, *, with_usage: bool = False, with_provisional: bool = False) -> None:
        super().__init__(header)
        self._fingerprint = header.fingerprint
        self._listed = 0  # tokens whose chances were sent
        self._shown: Fields = {}  # of provisional text
        self._with_usage = with_usage
        self._with_provisional = with_provisional

    def whole(self, answer: Answer) -> Fields:
        self._follow(answer)
        choice = {"index": 0, **self.choice(answer), "finish_reason": answer.reason}
        execution = {"execution": answer.level} if answer.level else {}
        moa = {"seed": self.header.seed, **execution, **verification(answer)}
        return {**self._fields(self.object), "choices": [choice], "usage": self._usage(answer), "moa": moa}

    def first(self, answer: Answer) -> bytes:
        content = {} if answer.has_parts else {"content": ""}  # with calls there may be none
        return self._event([self.delta({"role": "assistant", **content})], {"seed": self.header.seed})

    def next(self, answer: Answer) -> bytes:
        choices = self._choices(answer)
        moa = self._follow(answer) | self._news(answer)
        return self._event(choices, moa) if choices or moa else b""

    def last(self, answer: Answer) -> bytes:
        choices = [*self._choices(answer), self.delta({}, answer.reason) | {"logprobs": self._chances(answer)}]
        body = self._event(choices, self._follow(answer) | verification(answer))
        if self._with_usage:
            body += event({**self._fields(self.chunk_object), "choices": [], "usage": self._usage(answer)})
        return body + DONE

    def _choices(self, answer: Answer) -> list[Fields]:
        """What is new, a choice for each piece."""
        choices = [self._chunk(piece, answer) for piece in answer.take()]
        if choices:
            choices[-1]["logprobs"] = self._chances(answer)
        return choices

    def choice(self, answer: Answer) -> Fields:
        reasoning, text, calls = parted(answer.take())
        content = text or None if answer.has_parts else text
        message: Fields = {"role": "assistant", "content": content, "refusal": None}
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = [_call(piece, answer) for piece in calls]
        return {"message": message, "logprobs": self._chances(answer)}

    def _chunk(self, piece: Piece, answer: Answer) -> Fields:
        match piece:
            case ReasoningPiece(text):
                return self.delta({"reasoning_content": text})
            case TextPiece(text):
                return self.delta({"content": text})
            case CallPiece(index):
                return self.delta({"tool_calls": [{"index": index, **_call(piece, answer)}]})

    def delta(self, delta: Fields, reason: str | None = None) -> Fields:
        """The choice of a chunk that adds this."""
        return {"delta": delta, "logprobs": None, "finish_reason": reason}

    def logprobs(self, tokens: Sequence[ToldToken]) -> Fields:
        return {"content": [_of_chat(token) for token in tokens], "refusal": None}

    def ahead(self, answer: Answer) -> Fields:
        """What provisional text is, and how many of its characters are likely to be the target's."""
        text = answer.text
        if not answer.has_parts:
            return {"provisional": text.provisional, "likely": text.likely}
        reasoning, said = answer.ahead(text.provisional)
        likely = len(answer.ahead(text.provisional[: text.likely])[1])
        return {"provisional": said, "provisional_reasoning": reasoning, "likely": likely}

    def _chances(self, answer: Answer) -> Fields | None:
        """What is new of the chances of tokens whose text was sent; None: nothing, or nobody asks."""
        if answer.told is None:
            return None
        tokens = answer.told.tokens[self._listed :]
        if answer.reason is None:
            tokens = [each for each in tokens if each.end <= len(answer.text.committed)]
        self._listed += len(tokens)
        return self.logprobs(tokens) if tokens else None

    def _fields(self, kind: str) -> Fields:
        return {
            "id": self.prefix + self.header.identifier,
            "object": kind,
            "created": self.header.created,
            "model": self.header.model,
            "system_fingerprint": self._fingerprint,
        }

    def _follow(self, answer: Answer) -> Fields:
        """Says in which execution the answer is continued, if that has changed."""
        before, self._fingerprint = self._fingerprint, answer.fingerprint(self.header.fingerprint)
        return {"execution": answer.level} if self._fingerprint != before else {}

    def _usage(self, answer: Answer) -> Fields:
        prompt, tokens = self.header.prompt_tokens, answer.completion_tokens
        usage: Fields = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
        if answer.reasoning_tokens is not None:
            usage["completion_tokens_details"] = {"reasoning_tokens": answer.reasoning_tokens}
        return usage

    def _news(self, answer: Answer) -> Fields:
        """What this stream says of provisional text, if that has changed."""
        if not self._with_provisional:
            return {}
        waiting = {"waiting": len(answer.text.waiting), "withdrawn": answer.withdrawn, "link": answer.link.value}
        before, self._shown = self._shown, {**self.ahead(answer), **waiting}
        return self._shown if self._shown != before else {}

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

    def choice(self, answer: Answer) -> Fields:
        return {"text": parted(answer.take())[1], "logprobs": self._chances(answer)}

    def delta(self, delta: Fields, reason: str | None = None) -> Fields:
        text = delta.get("reasoning_content", "") + delta.get("content", "")
        return {"text": text, "logprobs": None, "finish_reason": reason}

    def logprobs(self, tokens: Sequence[ToldToken]) -> Fields:
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [token.chance for token in tokens],
            "top_logprobs": [_by_text(token) for token in tokens],
            "text_offset": [token.start for token in tokens],
        }


def _call(piece: CallPiece, answer: Answer) -> Fields:
    function = {"name": piece.name, "arguments": piece.arguments}
    return {"id": answer.call_id(piece), "type": "function", "function": function}


def _of_chat(token: ToldToken) -> Fields:
    likeliest = [{"token": _decoded(data), "logprob": chance, "bytes": list(data)} for data, chance in token.likeliest]
    return {"token": token.text, "logprob": token.chance, "bytes": list(token.data), "top_logprobs": likeliest}


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
