"""ollama's API, in and out: chats, and prompts. Pure but for a random seed and a clock."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any

from moa_shared.sampling.settings import DEFAULTED, REPEAT_LAST_N, Constraint, ConstraintKind
from pydantic import BeforeValidator, Field, PlainValidator
from pydantic_core import PydanticCustomError

from moa_client.conversation.options import draw_seed
from moa_client.endpoint.answer import Answer, Fields, Form, written
from moa_client.endpoint.ask import AskedReasoning, ChatAsk, schema_form
from moa_client.endpoint.fields import (
    MOST_MESSAGES,
    REFUSED,
    RequestFields,
    refused,
    refusing,
)
from moa_client.endpoint.openai_fields import Message, SamplingFields, ToolField, conversation, tool_offer
from moa_client.settings import DEFAULT_MODEL
from moa_client.tools.answer_reader import CallPiece, Piece, ReasoningPiece, TextPiece, parted
from moa_client.tools.turns import ChatMessage
from moa_client.web.access import RequestError

EFFORTS = {True: "medium", False: "none", "low": "low", "medium": "medium", "high": "high", "max": "xhigh"}
LATEST = ":latest"  # the tag that clients add to a name without one
# ollama's: programs that leave them out rely on them
DEFAULTS = dict(zip(DEFAULTED, (0.8, 40, 0.9, 0.0, 1.1, REPEAT_LAST_N), strict=True))


class OptionFields(SamplingFields):
    refused = REFUSED
    seed: int = -1
    num_predict: int = Field(-1, lt=1 << 31)


def _format(value: object) -> object:
    if isinstance(value, dict) or value in ("", "json"):
        return value
    raise PydanticCustomError("format", "expected 'json' or a JSON schema")


def _think(value: object) -> object:
    for asked, effort in EFFORTS.items():
        if value is asked or (value == asked and isinstance(value, str)):
            return effort
    raise PydanticCustomError("think", "expected true, false, low, medium, high, max")


class OllamaRequest(RequestFields):
    refused = REFUSED
    model: Annotated[
        str, BeforeValidator(lambda name: name.removesuffix(LATEST) if isinstance(name, str) else name)
    ] = DEFAULT_MODEL
    stream: bool = True
    format: Annotated[dict[str, Any] | str, PlainValidator(_format)] = ""
    options: OptionFields = Field(default_factory=OptionFields)
    think: Annotated[str | None, PlainValidator(_think)] = None

    @property
    def loaded(self) -> Fields | None:
        """What is answered where the model is only to be loaded; None: it is asked something."""
        raise NotImplementedError

    def ask(self) -> ChatAsk:
        given, form = self.options, None
        with refusing("format"):
            if isinstance(self.format, dict):
                form = schema_form(self.format)
            elif self.format:
                form = Constraint(ConstraintKind.JSON_OBJECT)
        options = given.sampled(
            seed=given.seed if given.seed >= 0 else draw_seed(), max_tokens=max(0, given.num_predict), constraint=form
        )
        with refusing("options"):
            options.settings()
        return ChatAsk(
            model=self.model,
            stream=self.stream,
            options=options,
            defaults=DEFAULTS,
            reasoning=AskedReasoning(self.think, param="think"),
        )

    def form(self, answer: Answer) -> OllamaForm:
        return OllamaForm(answer, is_chat=isinstance(self, ChatRequest), shows_thinking=self.think != "none")


class ChatRequest(OllamaRequest):
    messages: list[Message] = Field(default_factory=list, max_length=MOST_MESSAGES)
    tools: list[ToolField] = Field(default_factory=list)

    @property
    def loaded(self) -> Fields | None:
        return None if self.messages else {"message": {"role": "assistant", "content": ""}}

    def ask(self) -> ChatAsk:
        offer = tool_offer([tool.function for tool in self.tools])
        return replace(super().ask(), messages=conversation(self.messages), offer=offer)


class TextRequest(OllamaRequest):
    """A prompt, which is a chat of its own unless it is raw."""

    text: str = Field("", alias="prompt")
    system: str = ""
    raw: bool = False

    @property
    def loaded(self) -> Fields | None:
        return None if self.text else {"response": ""}

    def ask(self) -> ChatAsk:
        if self.raw and self.system:
            raise refused("system", "raw uses no template: write it into the prompt")
        if self.raw:
            return replace(super().ask(), text=self.text)
        system = [ChatMessage("system", self.system)] if self.system else []
        return replace(super().ask(), messages=[*system, ChatMessage("user", self.text)])


class OllamaForm(Form):
    """An answer as ollama has it: one object, or one a line as it comes.

    State: when the answer was asked for and began. `is_chat`: it is a message; `shows_thinking`: reasoning is sent.
    """

    media_type = "application/x-ndjson"
    path = "/api/"

    def __init__(self, answer: Answer, *, is_chat: bool, shows_thinking: bool) -> None:
        super().__init__(answer)
        self._is_chat = is_chat
        self._shows_thinking = shows_thinking
        self._asked = self._begun = time.monotonic_ns()  # where an answer is sent whole, nothing says when it began
        # an object without text: clients would stumble over an empty line
        self.keep_alive = self._line(self.content(""))

    def whole(self) -> Fields:
        thinking, text, pieces = parted(self.answer.take())
        return self._ended(self.content(text, thinking if self._shows_thinking else "", pieces))

    def next(self) -> bytes:
        body = super().next()
        if body and self._begun == self._asked:
            self._begun = time.monotonic_ns()
        return body

    def part(self, piece: Piece) -> bytes:
        match piece:
            case TextPiece(text):
                return self._line(self.content(text))
            case ReasoningPiece(text):
                return self._line(self.content("", text)) if self._shows_thinking else b""
            case CallPiece():
                return self._line(self.content("", "", [piece]))

    def last(self) -> bytes:
        return self.next() + f"{written(self._ended(self.content('')))}\n".encode()

    def failed(self, error: RequestError) -> bytes:
        return f"{written(error.fields_at(self.path))}\n".encode()

    def content(self, text: str, thinking: str = "", calls: Sequence[CallPiece] = ()) -> Fields:
        """The fields of an object that have a piece of the answer."""
        thought = {"thinking": thinking} if thinking else {}
        if not self._is_chat:
            return {"response": text, **thought}
        called = {"tool_calls": [self._call(each) for each in calls]} if calls else {}
        return {"message": {"role": "assistant", "content": text, **thought, **called}}

    def _call(self, piece: CallPiece) -> Fields:
        function = {"index": piece.index, "name": piece.name, "arguments": json.loads(piece.arguments)}
        return {"id": self.answer.call_id(piece), "function": function}

    def _line(self, content: Fields) -> bytes:
        return f"{written({**self._fields(), **content, 'done': False})}\n".encode()

    def _ended(self, content: Fields) -> Fields:
        now, answer = time.monotonic_ns(), self.answer
        return {
            **self._fields(),
            **content,
            "done": True,
            "done_reason": "stop" if answer.reason == "tool_calls" else answer.reason,
            "total_duration": now - self._asked,
            "load_duration": 0,
            "prompt_eval_count": answer.prompt_tokens,
            "prompt_eval_duration": self._begun - self._asked,
            "eval_count": answer.completion_tokens,
            "eval_duration": now - self._begun,
            "moa": {"seed": answer.seed, "verified": answer.is_verified},
        }

    def _fields(self) -> Fields:
        return {"model": self.answer.model, "created_at": date_of(self.answer.created)}


def date_of(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
