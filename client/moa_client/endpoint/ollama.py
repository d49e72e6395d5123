"""ollama's API, in and out: chats, and prompts. Pure but for a random seed and a clock."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

from moa_shared.sampling.settings import REPEAT_LAST_N, Constraint, ConstraintKind, SamplingDefaults
from pydantic import BeforeValidator, Field, PlainValidator
from pydantic_core import PydanticCustomError

from moa_client.conversation.options import draw_seed
from moa_client.endpoint.answer import Answer, AnswerHeader, Asked, Fields, Form, parted, written
from moa_client.endpoint.anthropic import values_of
from moa_client.endpoint.ask import ChatAsk, checked, schema_form
from moa_client.endpoint.fields import (
    DEFAULT_MODEL,
    MOST_MESSAGES,
    REFUSED,
    RequestFields,
    parsed_request,
    refused,
    refusing,
)
from moa_client.endpoint.openai_fields import Message, SamplingFields, ToolField, conversation, tool_offer
from moa_client.tools.answer_reader import CallPiece, Piece
from moa_client.tools.thinking import AskedReasoning, ReasoningPiece, TextPiece
from moa_client.tools.turns import ChatMessage
from moa_client.web.error_form import RequestError

EFFORTS = ("low", "medium", "high", "max")
LATEST = ":latest"  # the tag that clients add to a name without one
# ollama's: programs that leave them out rely on them
DEFAULTS = SamplingDefaults(0.8, 40, 0.9, 0.0, 1.1, REPEAT_LAST_N)


class OptionFields(SamplingFields):
    refused = REFUSED
    seed: int = -1
    num_predict: int = Field(-1, lt=1 << 31)


def _format(value: object) -> object:
    if isinstance(value, dict) or value in ("", "json"):
        return value
    raise PydanticCustomError("format", "expected 'json' or a JSON schema")


def _think(value: object) -> object:
    if isinstance(value, bool) or value in EFFORTS:
        return value
    raise PydanticCustomError("think", "expected true, false, {efforts}", {"efforts": ", ".join(EFFORTS)})


class OllamaRequest(RequestFields):
    """What both kinds of requests have."""

    refused = REFUSED
    model: Annotated[
        str, BeforeValidator(lambda name: name.removesuffix(LATEST) if isinstance(name, str) else name)
    ] = DEFAULT_MODEL
    stream: bool = True
    format: Annotated[dict[str, Any] | str, PlainValidator(_format)] = ""
    options: OptionFields = Field(default_factory=OptionFields)
    think: Annotated[bool | str | None, PlainValidator(_think)] = None

    def asked(self, **more: Any) -> ChatAsk:
        """What is asked; `more`: that the kinds of requests differ in."""
        given, form = self.options, None
        with refusing("format"):
            if isinstance(self.format, dict):
                form = schema_form(self.format)
            elif self.format:
                form = Constraint(ConstraintKind.JSON_OBJECT)
        options = given.sampled(
            seed=given.seed if given.seed >= 0 else draw_seed(), max_tokens=max(0, given.num_predict), constraint=form
        )
        effort = self.think if isinstance(self.think, str) else None
        is_on = self.think if isinstance(self.think, bool) else None
        return ChatAsk(
            model=self.model,
            stream=self.stream,
            options=checked(options, "options"),
            defaults=DEFAULTS,
            reasoning=AskedReasoning("xhigh" if effort == "max" else effort, is_on, param="think"),
            **more,
        )

    def form(self, header: AnswerHeader) -> OllamaForm:
        return OllamaForm(header, is_chat=isinstance(self, ChatRequest), shows_thinking=self.think is not False)


class ChatRequest(OllamaRequest):
    messages: list[Message] = Field(default_factory=list, max_length=MOST_MESSAGES)
    tools: list[ToolField] = Field(default_factory=list)


class TextRequest(OllamaRequest):
    text: str = Field("", alias="prompt")
    system: str = ""
    raw: bool = False


AskedOrLoaded = Asked | tuple[str, Fields]


def chat_request(body: Mapping[str, Any]) -> AskedOrLoaded:
    """What a body asks, and how it is answered; or the model that it only wants loaded, and what is answered then."""
    request = parsed_request(ChatRequest, body)
    if not request.messages:
        return request.model, {"message": {"role": "assistant", "content": ""}}
    offer = tool_offer([tool.function for tool in request.tools])
    return request.asked(messages=conversation(request.messages), offer=offer), request.form


def text_request(body: Mapping[str, Any]) -> AskedOrLoaded:
    """The same for a prompt, which is a chat of its own unless it is raw."""
    request = parsed_request(TextRequest, body)
    if request.raw and request.system:
        raise refused("system", "raw uses no template: write it into the prompt")
    if not request.text:
        return request.model, {"response": ""}
    system = [ChatMessage("system", request.system)] if request.system else []
    messages = [] if request.raw else [*system, ChatMessage("user", request.text)]
    return request.asked(messages=messages, text=request.text if request.raw else None), request.form


class OllamaForm(Form):
    """An answer as ollama has it: one object, or one a line as it comes.

    State: when the answer was asked for and began.

    Args:
        is_chat: it is a message; `shows_thinking`: reasoning is sent.
    """

    media_type = "application/x-ndjson"
    path = "/api/"

    def __init__(self, header: AnswerHeader, *, is_chat: bool, shows_thinking: bool) -> None:
        super().__init__(header)
        self._is_chat = is_chat
        self._shows_thinking = shows_thinking
        self._asked = self._begun = time.monotonic_ns()  # where an answer is sent whole, nothing says when it began
        # an object without text: clients would stumble over an empty line
        self.keep_alive = self._line(self.content(""))

    def whole(self, answer: Answer) -> Fields:
        thinking, text, pieces = parted(answer.take())
        calls = [_call(piece, answer) for piece in pieces]
        return self._ended(self.content(text, thinking if self._shows_thinking else "", calls), answer)

    def next(self, answer: Answer) -> bytes:
        body = super().next(answer)
        if body and self._begun == self._asked:
            self._begun = time.monotonic_ns()
        return body

    def part(self, piece: Piece, answer: Answer) -> bytes:
        match piece:
            case TextPiece(text):
                return self._line(self.content(text))
            case ReasoningPiece(text):
                return self._line(self.content("", text)) if self._shows_thinking else b""
            case CallPiece():
                return self._line(self.content("", "", [_call(piece, answer)]))

    def end(self, answer: Answer) -> bytes:
        return f"{written(self._ended(self.content(''), answer))}\n".encode()

    def failed(self, error: RequestError) -> bytes:
        return f"{written(error.fields_at(self.path))}\n".encode()

    def content(self, text: str, thinking: str = "", calls: Sequence[Fields] = ()) -> Fields:
        """The fields of an object that have a piece of the answer."""
        thought = {"thinking": thinking} if thinking else {}
        if not self._is_chat:
            return {"response": text, **thought}
        called = {"tool_calls": list(calls)} if calls else {}
        return {"message": {"role": "assistant", "content": text, **thought, **called}}

    def _line(self, content: Fields) -> bytes:
        return f"{written({**self._fields(), **content, 'done': False})}\n".encode()

    def _ended(self, content: Fields, answer: Answer) -> Fields:
        now = time.monotonic_ns()
        return {
            **self._fields(),
            **content,
            "done": True,
            "done_reason": "stop" if answer.reason == "tool_calls" else answer.reason,
            "total_duration": now - self._asked,
            "load_duration": 0,
            "prompt_eval_count": self.header.prompt_tokens,
            "prompt_eval_duration": self._begun - self._asked,
            "eval_count": answer.completion_tokens,
            "eval_duration": now - self._begun,
            "moa": {"seed": self.header.seed, "verified": answer.is_verified},
        }

    def _fields(self) -> Fields:
        return {"model": self.header.model, "created_at": date_of(self.header.created)}


def date_of(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _call(piece: CallPiece, answer: Answer) -> Fields:
    function = {"index": piece.index, "name": piece.name, "arguments": values_of(piece.arguments)}
    return {"id": answer.call_id(piece), "function": function}
