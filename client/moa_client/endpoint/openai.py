"""OpenAI's older APIs, in and out: completions of chats and of texts. Pure but for a random seed.

Every value that cannot be used is refused with the name of its parameter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from moa_shared.sampling.settings import MOST_LIKELIEST
from pydantic import BeforeValidator, Field

from moa_client.conversation.answer_options import AnswerOptions
from moa_client.endpoint.answer import Answer, AnswerHeader, Asked, Fields, Form, event, verification
from moa_client.endpoint.ask import ChatAsk, Messages
from moa_client.endpoint.fields import (
    MOST_MESSAGES,
    REFUSED_IN_MESSAGES,
    RequestFields,
    Text,
    missing,
    parsed_request,
    refuse_continuing,
    refused,
)
from moa_client.endpoint.openai_fields import (
    AnswerRequest,
    Effort,
    FormKind,
    Limit,
    NamedSchema,
    ToolField,
    as_prompts,
    tool_offer,
)
from moa_client.endpoint.tokens import ToldToken
from moa_client.tools.answer_reader import CallPiece, Piece
from moa_client.tools.effort import AskedReasoning
from moa_client.tools.thinking import ReasoningPiece, TextPiece
from moa_client.tools.tool import ToolResult
from moa_client.tools.turns import ChatMessage

TEXT_TOKENS = 16  # of a completion, if absent
MOST_ARGUMENTS = 4096  # bytes
MOST_CHOICES = 8  # as many as a daemon answers at once, unless it is told otherwise
SYSTEM_ROLES = ("system", "developer")
DONE = b"data: [DONE]\n\n"


class CalledFunction(RequestFields):
    name: str
    arguments: str


class CallField(RequestFields):
    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(RequestFields):
    refused = REFUSED_IN_MESSAGES
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | None = None
    name: str = ""
    refusal: str = ""
    reasoning_content: str = ""
    tool_calls: list[CallField] = Field(default_factory=list)
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        return (self.content or "") + self.refusal


def conversation(messages: Sequence[Message]) -> list[ChatMessage | ToolResult]:
    """The messages as templates are prepared for.

    Templates know one system prompt, at the beginning: all messages of the system there become one.
    """
    leading = next((at for at, each in enumerate(messages) if each.role not in SYSTEM_ROLES), len(messages))
    said = Messages()
    if leading:
        said.made.append(ChatMessage("system", "\n\n".join(message.text for message in messages[:leading])))
    for number, message in enumerate(messages):
        path = f"messages[{number}]"
        _check_message(message, path)
        match message.role:
            case "tool":
                said.add_result(f"{path}.tool_call_id", message.tool_call_id or "", message.text)
            case "user":
                said.made.append(ChatMessage("user", message.text, name=message.name))
            case "assistant":
                calls = tuple(
                    said.call(
                        f"{path}.tool_calls[{place}]", call.id, call.function.name, call.function.arguments or "{}"
                    )
                    for place, call in enumerate(message.tool_calls)
                )
                text, reasoning = message.text, message.reasoning_content
                said.made.append(ChatMessage("assistant", text, calls, message.name, reasoning))
            case _ if number >= leading:
                said.made.append(ChatMessage("system", message.text))
    return said.made


def _check_message(message: Message, path: str) -> None:
    if message.role != "assistant":
        if message.content is None:
            raise missing(f"{path}.content")
        if message.tool_calls:
            raise refused(f"{path}.tool_calls", "only a message from assistant has calls")
        if message.reasoning_content:
            raise refused(f"{path}.reasoning_content", "only a message from assistant has reasoning")
    if message.tool_call_id is not None and message.role != "tool":
        raise refused(f"{path}.tool_call_id", "only a message from tool answers a call")
    if message.tool_call_id is None and message.role == "tool":
        raise missing(f"{path}.tool_call_id")


class ResponseFormat(RequestFields):
    type: FormKind
    json_schema: NamedSchema | None = None


class ChoicesRequest(AnswerRequest):
    """What requests have that may ask for several answers."""

    n: int = Field(1, ge=1, le=MOST_CHOICES)
    response_format: ResponseFormat = ResponseFormat(type="text")

    def form(self, header: AnswerHeader) -> ChatForm:
        kind = ChatForm if isinstance(self, ChatRequest) else TextForm
        with_usage = self.stream_options is not None and self.stream_options.include_usage
        return kind(header, with_usage=with_usage, with_provisional=self.moa.provisional)

    def chosen(self, answers: int, most_tokens: int, likeliest: int | None) -> AnswerOptions:
        """The options of its answers, of which there are so many."""
        if self.moa.provisional and answers > 1:
            raise refused("moa.provisional", "only a request for one answer may ask for it")
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
    enable_thinking: bool | None = None
    thinking_token_budget: int | None = Field(None, ge=0, lt=1 << 31)
    thinking_budget: int | None = Field(None, ge=0, lt=1 << 31)
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)

    def ask(self) -> ChatAsk:
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise refused("max_tokens", "it is the older name of max_completion_tokens: give one of them")
        if self.top_logprobs is not None and not self.logprobs:
            raise refused("top_logprobs", "only a request with logprobs: true may have it")
        refuse_continuing(self.messages, "answers are not continued, and models know no second one")
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
            options=self.chosen(self.n, most_tokens, likeliest if self.logprobs else None),
            messages=conversation(self.messages),
            offer=offer,
            reasoning=self._reasoning(),
            n=self.n,
            unverified=self.moa.unverified,
        )

    def _reasoning(self) -> AskedReasoning:
        if self.reasoning_effort is not None and self.enable_thinking is not None:
            raise refused("enable_thinking", "reasoning_effort says how much the model reasons: give one of them")
        if self.thinking_budget is not None and self.thinking_token_budget is not None:
            raise refused("thinking_budget", "it is another name of thinking_token_budget: give one of them")
        if len(json.dumps(self.chat_template_kwargs)) > MOST_ARGUMENTS:
            raise refused("chat_template_kwargs", f"at most {MOST_ARGUMENTS} bytes of JSON are allowed")
        budget = self.thinking_budget if self.thinking_token_budget is None else self.thinking_token_budget
        return AskedReasoning(self.reasoning_effort, self.enable_thinking, budget, self.chat_template_kwargs)


class TextRequest(ChoicesRequest):
    """A request for the continuation of one text or more. Programs say false where they want no chances."""

    texts: Annotated[list[str | list[int]], BeforeValidator(as_prompts)] = Field(alias="prompt")
    max_tokens: int = Field(TEXT_TOKENS, ge=0, lt=1 << 31)
    echo: bool = False
    logprobs: Annotated[int | None, BeforeValidator(lambda value: None if value is False else value)] = Field(
        None, ge=0, le=MOST_LIKELIEST
    )

    def ask(self) -> ChatAsk:
        number = len(self.texts) * self.n
        if number > MOST_CHOICES:
            words = f"{number} answers are asked for, {self.n} of each text, and at most {MOST_CHOICES} are given"
            raise refused("prompt", f"{words}: send fewer texts at once (lm-eval: batch_size={MOST_CHOICES})")
        if not self.max_tokens and not self.echo:
            raise refused("max_tokens", "only a request with echo: true may want no token")
        return ChatAsk(
            model=self.model,
            stream=self.stream,
            options=self.chosen(number, self.max_tokens, self.logprobs),
            texts=self.texts,
            is_repeated=self.echo,
            is_answered=bool(self.max_tokens),
            n=self.n,
            unverified=self.moa.unverified,
        )


def chat_request(body: Mapping[str, Any]) -> Asked:
    request = parsed_request(ChatRequest, body)
    return request.ask(), request.form


def text_request(body: Mapping[str, Any]) -> Asked:
    """The same for the continuation of texts."""
    request = parsed_request(TextRequest, body)
    return request.ask(), request.form


@dataclass(slots=True)
class SentChoice:
    fingerprint: str
    listed: int = 0  # tokens whose chances were sent
    shown: Fields = field(default_factory=dict)  # of provisional text
    has_repeated: bool = False
    has_ended: bool = False


class ChatForm(Form):
    """The next message of a chat.

    Args:
        with_usage: the last chunk says how many tokens there were.
        with_provisional: chunks also have the text that the server may take back.
    """

    prefix, object, chunk_object = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def __init__(self, header: AnswerHeader, *, with_usage: bool = False, with_provisional: bool = False) -> None:
        super().__init__(header)
        self._sent = [SentChoice(header.fingerprint) for _ in header.seeds]
        self._with_usage = with_usage
        self._with_provisional = with_provisional

    def whole(self, answers: Sequence[Answer]) -> Fields:
        choices, notes = [], []
        for index, answer in enumerate(answers):
            self._follow(index, answer)
            choices.append({"index": index, **self.choice(answer), "finish_reason": answer.reason})
            execution = {"execution": answer.level} if answer.level else {}
            notes.append({"seed": self.header.seeds[index], **execution, **verification(answer)})
        if len(answers) > 1:
            choices = [choice | {"moa": moa} for choice, moa in zip(choices, notes, strict=True)]
            notes = [{"verified": all(answer.is_verified for answer in answers)}]
        fields = {**self._fields(self.object, 0), "choices": choices, "usage": self._usage(answers)}
        return fields | {"moa": notes[0]}

    def first(self, answers: Sequence[Answer]) -> bytes:
        seeds = enumerate(self.header.seeds)
        return b"".join(self._event(index, [self.opening(answers[index])], {"seed": seed}) for index, seed in seeds)

    def next(self, answers: Sequence[Answer]) -> bytes:
        return b"".join([self._next(index, answer) for index, answer in enumerate(answers)])

    def _next(self, index: int, answer: Answer) -> bytes:
        sent = self._sent[index]
        if sent.has_ended:
            return b""
        choices = [] if sent.has_repeated else self.repeated(answer)
        sent.has_repeated = sent.has_repeated or bool(choices)
        choices += [self.chunk(piece, answer) for piece in answer.take()]
        is_over = answer.reason is not None
        if choices and (chances := self._chances(answer, sent, len(answer.text.committed))) is not None:
            choices[-1]["logprobs"] = chances
        moa = self._follow(index, answer)
        if not is_over:
            moa |= self._news(answer, sent)
            return self._event(index, choices, moa) if choices or moa else b""
        sent.has_ended = True
        closing = self.closing(answer.reason or "") | {"logprobs": self._chances(answer, sent)}
        before = self._event(index, choices, {}) if choices else b""
        return before + self._event(index, [closing], moa | verification(answer))

    def last(self, answers: Sequence[Answer]) -> bytes:
        usage = {}
        if self._with_usage:
            usage = {**self._fields(self.chunk_object, 0), "choices": [], "usage": self._usage(answers)}
        return self.next(answers) + (event(usage) if usage else b"") + DONE

    def choice(self, answer: Answer) -> Fields:
        pieces = answer.take()
        text = "".join([piece.text for piece in pieces if isinstance(piece, TextPiece)])
        reasoning = "".join([piece.text for piece in pieces if isinstance(piece, ReasoningPiece)])
        calls = [_call(piece, answer) for piece in pieces if isinstance(piece, CallPiece)]
        content = text or None if answer.has_parts else text
        message: Fields = {"role": "assistant", "content": content, "refusal": None}
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = calls
        told = answer.told.tokens if answer.told is not None else []
        return {"message": message, "logprobs": self.logprobs(answer, told) if told else None}

    def opening(self, answer: Answer) -> Fields:
        content = {} if answer.has_parts else {"content": ""}  # with calls there may be none
        return _delta({"role": "assistant", **content})

    def chunk(self, piece: Piece, answer: Answer) -> Fields:
        """The choice of the chunk that a piece becomes; the next two: of the first and of the last chunk."""
        match piece:
            case ReasoningPiece(text):
                return _delta({"reasoning_content": text})
            case TextPiece(text):
                return _delta({"content": text})
            case CallPiece(index):
                return _delta({"tool_calls": [{"index": index, **_call(piece, answer)}]})

    def closing(self, reason: str) -> Fields:
        return _delta({}, reason)

    def repeated(self, answer: Answer) -> list[Fields]:
        """The choice of the chunk that repeats the prompt; none: it is not repeated."""
        return []

    def logprobs(self, answer: Answer, tokens: Sequence[ToldToken]) -> Fields:
        return {"content": [_of_chat(token) for token in tokens], "refusal": None}

    def ahead(self, answer: Answer) -> Fields:
        """What provisional text is, and how many of its characters are likely to be the target's."""
        text = answer.text
        if not answer.has_parts:
            return {"provisional": text.provisional, "likely": text.likely}
        reasoning, said = answer.ahead(text.provisional)
        likely = len(answer.ahead(text.provisional[: text.likely])[1])
        return {"provisional": said, "provisional_reasoning": reasoning, "likely": likely}

    def _chances(self, answer: Answer, sent: SentChoice, characters: int | None = None) -> Fields | None:
        """What is new of the chances of tokens; None: nothing, or nobody asks.

        Args:
            characters: of text that were sent; None: all.
        """
        if answer.told is None:
            return None
        tokens = answer.told.tokens[sent.listed :]
        new = [each for each in tokens if characters is None or each.end <= characters]
        sent.listed += len(new)
        return self.logprobs(answer, new) if new else None

    def _fields(self, kind: str, index: int) -> Fields:
        return {
            "id": self.prefix + self.header.identifier,
            "object": kind,
            "created": self.header.created,
            "model": self.header.model,
            "system_fingerprint": self._sent[index].fingerprint,
        }

    def _follow(self, index: int, answer: Answer) -> Fields:
        """Says in which execution the answer is continued, if that has changed."""
        sent, fingerprint = self._sent[index], answer.fingerprint(self.header.fingerprint)
        has_changed, sent.fingerprint = fingerprint != sent.fingerprint, fingerprint
        return {"execution": answer.level} if has_changed else {}

    def _usage(self, answers: Sequence[Answer]) -> Fields:
        """How many tokens there were; those of a question count once."""
        prompt, tokens = self.header.prompt_tokens, sum(answer.completion_tokens for answer in answers)
        usage: Fields = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
        reasoning = [each.reasoning_tokens for each in answers if each.reasoning_tokens is not None]
        if reasoning:
            usage["completion_tokens_details"] = {"reasoning_tokens": sum(reasoning)}
        return usage

    def _news(self, answer: Answer, sent: SentChoice) -> Fields:
        """What this stream says of provisional text, if that has changed."""
        if not self._with_provisional:
            return {}
        waiting = {"waiting": len(answer.text.waiting), "withdrawn": answer.withdrawn, "link": answer.link.value}
        shown = {**self.ahead(answer), **waiting}
        if shown == sent.shown:
            return {}
        sent.shown = shown
        return shown

    def _event(self, index: int, choices: list[Fields], moa: Fields) -> bytes:
        """An event for each of some choices, of which the last has `moa`; without any, one for that alone."""
        usage = {"usage": None} if self._with_usage else {}
        fields = self._fields(self.chunk_object, index)
        numbered = [{"index": index, **choice} for choice in choices]
        before = [event({**fields, "choices": [choice], **usage}) for choice in numbered[:-1]]
        last = {**fields, "choices": numbered[-1:], **usage, **({"moa": moa} if moa else {})}
        return b"".join([*before, event(last)])


class TextForm(ChatForm):
    prefix, object, chunk_object = "cmpl-", "text_completion", "text_completion"

    def choice(self, answer: Answer) -> Fields:
        before = answer.echoed.tokens if answer.echoed is not None else []
        text = "".join([token.text for token in before])
        said = "".join([piece.text for piece in answer.take() if isinstance(piece, TextPiece)])
        told = None
        if answer.told is not None:
            moved = [replace(token, start=token.start + len(text)) for token in answer.told.tokens]
            told = _of_text([*before, *moved])
        return {"text": text + said, "logprobs": told}

    def opening(self, answer: Answer) -> Fields:
        return _text("")

    def chunk(self, piece: Piece, answer: Answer) -> Fields:
        return _text("" if isinstance(piece, CallPiece) else piece.text)

    def closing(self, reason: str) -> Fields:
        return _text("", reason)

    def repeated(self, answer: Answer) -> list[Fields]:
        if answer.echoed is None or not answer.echoed.tokens:
            return []
        tokens = answer.echoed.tokens
        told = None if answer.told is None else _of_text(tokens)
        return [_text("".join([token.text for token in tokens])) | {"logprobs": told}]

    def logprobs(self, answer: Answer, tokens: Sequence[ToldToken]) -> Fields:
        before = 0 if answer.echoed is None else answer.echoed.length
        return _of_text([replace(token, start=token.start + before) for token in tokens]) or {}


def _delta(delta: Fields, reason: str | None = None) -> Fields:
    return {"delta": delta, "logprobs": None, "finish_reason": reason}


def _text(text: str, reason: str | None = None) -> Fields:
    return {"text": text, "logprobs": None, "finish_reason": reason}


def _call(piece: CallPiece, answer: Answer) -> Fields:
    function = {"name": piece.name, "arguments": piece.arguments}
    return {"id": answer.call_id(piece), "type": "function", "function": function}


def _of_chat(token: ToldToken) -> Fields:
    likeliest = [{"token": _decoded(data), "logprob": chance, "bytes": list(data)} for data, chance in token.likeliest]
    return {"token": token.text, "logprob": token.chance, "bytes": list(token.data), "top_logprobs": likeliest}


def _of_text(tokens: Sequence[ToldToken]) -> Fields | None:
    """The chances of a text's tokens; None: there are none."""
    if not tokens:
        return None
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [token.chance for token in tokens],
        "top_logprobs": [_by_text(token) for token in tokens],
        "text_offset": [token.start for token in tokens],
    }


def _by_text(token: ToldToken) -> dict[str, float] | None:
    """The likeliest tokens by their text, and the token itself; of several with one text the likeliest.

    None: nothing comes before the token.
    """
    if token.chance is None:
        return None
    by_text: dict[str, float] = {}
    for data, chance in token.likeliest:
        by_text.setdefault(_decoded(data), chance)
    if token.chance not in by_text.values():
        by_text.setdefault(token.text, token.chance)
    return by_text


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "replace")
