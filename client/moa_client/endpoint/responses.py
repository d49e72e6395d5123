"""OpenAI's API of responses, in and out: items, which may continue kept responses. Pure but for what is kept.

Programs send back what they got: what has no effect of it is ignored.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from moa_shared.errors import MoaError, NotFoundError
from pydantic import BeforeValidator, Field, TypeAdapter

from moa_client.endpoint.answer import Answer, Asked, Fields, Form, event
from moa_client.endpoint.ask import AskedReasoning, ChatAsk, Messages
from moa_client.endpoint.fields import RequestFields, Text, parsed_request, refused
from moa_client.endpoint.openai_fields import (
    AnswerRequest,
    Effort,
    FormKind,
    FunctionField,
    Limit,
    NamedSchema,
    tool_offer,
)
from moa_client.history.database import KeptResponse, KeptResponses
from moa_client.tools.answer_reader import CallPiece, Piece, ReasoningPiece
from moa_client.tools.tool import ToolResult
from moa_client.tools.turns import ChatMessage
from moa_client.web.access import RequestError

MOST_ITEMS = 1000  # each is rendered; those of the responses that are continued count too
PREFIX = "resp_"
REPEATED = {
    *("instructions", "max_output_tokens", "metadata", "parallel_tool_calls", "previous_response_id"),
    *("temperature", "tool_choice", "tools", "top_p"),
}  # of the request
FAILURES = {429: "rate_limit_exceeded", 400: "invalid_prompt"}  # OpenAI's codes by status; else "server_error"
log = logging.getLogger(__name__)


class MessageItem(RequestFields):
    type: Literal["message"]
    role: Literal["system", "developer", "user", "assistant"]
    content: Text


class CallItem(RequestFields):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class ResultItem(RequestFields):
    type: Literal["function_call_output"]
    call_id: str
    output: Text


class ReasoningItem(RequestFields):
    """What a model thought before an earlier answer; this one does not get it."""

    type: Literal["reasoning"]


Item = Annotated[MessageItem | CallItem | ResultItem | ReasoningItem, Field(discriminator="type")]
_ITEMS: TypeAdapter[list[Item]] = TypeAdapter(list[Item])


def _as_items(given: object) -> object:
    """Items, each with its type, which a message may lack."""
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    if not isinstance(given, list):
        return given
    untyped = [isinstance(item, dict) and item.get("type") is None and "role" in item for item in given]
    return [item | {"type": "message"} if is_one else item for item, is_one in zip(given, untyped, strict=True)]


def conversation(
    before: Sequence[Item], items: Sequence[Item], instructions: str | None
) -> list[ChatMessage | ToolResult]:
    """The items as templates are prepared for. What an answer said and what it called become one message.

    Templates know one system prompt, at the beginning: the instructions and all messages of the system there become
    one. `before`: of the responses that are continued.
    """
    system = [] if instructions is None else [instructions]
    talk = Messages()
    made = talk.made
    for number, item in enumerate([*before, *items], -len(before)):
        path, last = f"input[{number}]", made[-1] if made else None
        said = last if isinstance(last, ChatMessage) and last.role == "assistant" else None
        match item:
            case MessageItem(role="system" | "developer") if not made:
                system.append(item.content)
            case MessageItem(role="assistant") if said is not None and said.calls and not said.text:
                made[-1] = ChatMessage("assistant", item.content, said.calls)
            case MessageItem(role="assistant" | "user" as role):
                made.append(ChatMessage(role, item.content))
            case MessageItem():
                made.append(ChatMessage("system", item.content))
            case CallItem():
                call = talk.call(path, item.call_id, item.name, item.arguments)
                if said is not None:
                    made[-1] = ChatMessage("assistant", said.text, (*said.calls, call))
                else:
                    made.append(ChatMessage("assistant", "", (call,)))
            case ResultItem():
                talk.add_result(f"{path}.call_id", item.call_id, item.output)
    if made and isinstance(made[-1], ChatMessage) and made[-1].role == "assistant":
        raise refused(
            "input", "the last item must not be a message from assistant, or a call: answers are not continued"
        )
    if system:
        made.insert(0, ChatMessage("system", "\n\n".join(system)))
    if not made:
        raise refused("input", "there is no message in it")
    return made


class TextFormat(NamedSchema):
    type: FormKind = "text"


class TextConfig(RequestFields):
    format: TextFormat = TextFormat()


class ReasoningConfig(RequestFields):
    effort: Effort | None = None


class FlatTool(FunctionField):
    type: Literal["function"]


class ResponseRequest(AnswerRequest):
    input: Annotated[list[Item], BeforeValidator(_as_items)] = Field(min_length=1, max_length=MOST_ITEMS)
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    metadata: dict[str, str] = Field(default_factory=dict)
    text: TextConfig = TextConfig()
    reasoning: ReasoningConfig = ReasoningConfig()
    max_output_tokens: Limit | None = None
    tools: list[FlatTool] = Field(default_factory=list)
    tool_choice: Any = "auto"
    parallel_tool_calls: bool = True

    def ask(self, before: Sequence[Item] = ()) -> ChatAsk:
        """What is asked; `before`: the items of the responses that this one continues."""
        form = self.text.format
        offer = tool_offer(self.tools, self.tool_choice, is_parallel=self.parallel_tool_calls, at="")
        if offer.tools and self.structured_outputs is not None:
            raise refused("structured_outputs", "an answer of this form calls no tools: use text.format")
        return ChatAsk(
            model=self.model,
            stream=self.stream,
            options=self.answer_options(self.max_output_tokens or 0, "text.format", form.type, form),
            messages=conversation(before, self.input, self.instructions),
            offer=offer,
            reasoning=AskedReasoning(self.reasoning.effort, param="reasoning.effort"),
            unverified=self.moa.unverified,
        )


def response_request(body: Mapping[str, Any], kept: KeptResponses | None = None) -> Asked:
    """What a body asks over what is kept of earlier responses, and how it is answered.

    `kept`: None: nothing is, by the user's wish.
    """
    request = parsed_request(ResponseRequest, body)
    if kept is None and request.store:
        raise refused("store", "nothing is kept here (--no-history): send false")
    before: list[Item] = []
    if request.previous_response_id is not None:
        before = _items_of(request.previous_response_id, kept)
        if (number := len(before) + len(request.input)) > MOST_ITEMS:
            words = f"with the responses before it there are {number} items, at most {MOST_ITEMS} are allowed"
            raise refused("previous_response_id", f"{words}: begin again")
    keeping = kept if request.store is not False else None
    return request.ask(before), lambda answer: ResponseForm(answer, request, keeping)


def _items_of(identifier: str, kept: KeptResponses | None) -> list[Item]:
    """All items of a response and of those that it continues: what was asked, and what was answered."""
    param, code = "previous_response_id", "previous_response_not_found"
    if kept is None:
        raise RequestError(400, f"{param}: nothing is kept here (--no-history).", param=param, code=code)
    try:
        chain = kept.chain(identifier)
    except NotFoundError as error:
        raise RequestError(400, f"{param}: {error}", param=param, code=code) from None
    items: list[Item] = []
    for response in chain:
        output = json.loads(response.body)["output"]
        # a call without its end, of an older version, nobody can have answered
        answered = [each for each in output if (each["type"], each["status"]) != ("function_call", "incomplete")]
        items += _ITEMS.validate_python([*json.loads(response.input), *answered])
    return items


class ResponseForm(Form):
    """A response: items, of which the last one may be open, and the events that add up to them.

    `kept`: where it is kept when it is over; None: nowhere.
    """

    def __init__(self, answer: Answer, request: ResponseRequest, kept: KeptResponses | None) -> None:
        super().__init__(answer)
        self._request = request
        self._kept = kept
        self.items: list[Fields] = []
        self._open = ""  # the type of the last item, while it is open
        self._texts: list[str] = []  # of it
        self._space = ""  # held until something follows it: white space alone makes no message
        self._events = 2  # those of the beginning have the first two numbers

    def whole(self) -> Fields:
        self._rest()
        return self._ended()

    def first(self) -> bytes:
        response, kinds = self._fields("in_progress", []), ("response.created", "response.in_progress")
        events = enumerate(kinds)
        return b"".join(
            event({"type": kind, "sequence_number": number, "response": response}, kind) for number, kind in events
        )

    def part(self, piece: Piece) -> bytes:
        if isinstance(piece, CallPiece):
            call = {"call_id": self.answer.call_id(piece), "name": piece.name, "arguments": ""}
            begun = self._close() + self._begin("function_call", **call)
            kind = "response.function_call_arguments"
            self.items[-1]["arguments"] = piece.arguments
            delta = self._event(f"{kind}.delta", **self._place, delta=piece.arguments)
            done = self._event(f"{kind}.done", **self._place, name=piece.name, arguments=piece.arguments)
            return begun + delta + done + self._end_item("completed")
        kind, text = "reasoning" if isinstance(piece, ReasoningPiece) else "message", piece.text
        if kind == "message":
            if self._open != kind and not text.strip():
                self._space += text
                return b""
            text, self._space = self._space + text, ""
        return self._text(kind, text)

    def last(self) -> bytes:
        rest, response = self._rest(), self._ended()
        return rest + self._event(f"response.{response['status']}", response=response)

    def failed(self, error: RequestError) -> bytes:
        failure = {"code": FAILURES.get(error.status, "server_error"), "message": str(error), "param": error.param}
        rest = self._close("incomplete")
        response = {**self._fields("failed", self.items), "error": failure, "store": False}
        return rest + self._event("response.failed", response=response)

    def _rest(self) -> bytes:
        rest = self.next()
        if not self.items:  # an answer without anything is an empty message
            rest += self._text("message", self._space)
        return rest + self._close("completed" if self.answer.is_whole else "incomplete")

    @property
    def _place(self) -> Fields:
        return {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}

    def _text(self, kind: str, text: str) -> bytes:
        """Text of the open item, or of one that it begins."""
        begun = b""
        if self._open != kind:
            begun = self._close()
            more: Fields = {"role": "assistant"} if kind == "message" else {"summary": []}
            begun += self._begin(kind, **more, content=[])
            begun += self._event("response.content_part.added", **self._place, content_index=0, part=_part(kind, ""))
        self._texts.append(text)
        return begun + (self._text_event("delta", delta=text) if text else b"")

    def _begin(self, kind: str, **fields: Any) -> bytes:
        prefix = {"message": "msg", "reasoning": "rs", "function_call": "fc"}[kind]
        identifier = f"{prefix}_{self.answer.identifier}{len(self.items):02}"
        self.items.append({"id": identifier, "type": kind, "status": "in_progress", **fields})
        self._open = kind
        item = dict(self.items[-1])
        return self._event("response.output_item.added", output_index=len(self.items) - 1, item=item)

    def _close(self, status: str = "completed") -> bytes:
        if not self._open:
            return b""
        text = "".join(self._texts)
        part = _part(self._open, text)
        self.items[-1]["content"] = [part]
        done = self._text_event("done", text=text)
        done += self._event("response.content_part.done", **self._place, content_index=0, part=part)
        return done + self._end_item(status)

    def _end_item(self, status: str) -> bytes:
        self.items[-1]["status"] = status
        self._open, self._texts = "", []
        item = dict(self.items[-1])
        return self._event("response.output_item.done", output_index=len(self.items) - 1, item=item)

    def _text_event(self, suffix: str, **fields: Any) -> bytes:
        """An event about the text of the open item, which has room for log probabilities where it is a message."""
        is_message = self._open == "message"
        kind = "output_text" if is_message else "reasoning_text"
        more: Fields = {"logprobs": []} if is_message else {}
        return self._event(f"response.{kind}.{suffix}", **self._place, content_index=0, **fields, **more)

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._events += 1
        return event({"type": kind, "sequence_number": self._events - 1, **fields}, kind)

    def _ended(self) -> Fields:
        """The response that is over, once it is kept; which tokens were cached is not counted."""
        answer = self.answer
        asked, answered = answer.prompt_tokens, answer.completion_tokens
        fields = self._fields("completed" if answer.is_whole else "incomplete", self.items) | {
            "incomplete_details": None if answer.is_whole else {"reason": "max_output_tokens"},
            "usage": {
                "input_tokens": asked,
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": answered,
                "output_tokens_details": {"reasoning_tokens": answer.reasoning_tokens or 0},
                "total_tokens": asked + answered,
            },
            "moa": {"seed": answer.seed, **answer.verification},
        }
        if self._kept is not None:
            fields["store"] = self._keep(fields, self._kept)
        return fields

    def _keep(self, fields: Fields, kept: KeptResponses) -> bool:
        """Keeps the response; whether that was possible. It is not lost to the program if it was not."""
        asked = json.dumps([item.model_dump() for item in self._request.input], ensure_ascii=False)
        body, previous = json.dumps(fields, ensure_ascii=False), self._request.previous_response_id
        try:
            kept.keep(KeptResponse(fields["id"], previous, fields["created_at"], asked, body))
        except MoaError as error:
            log.warning("a response was not kept: %s", error)
            return False
        return True

    def _fields(self, status: str, output: Sequence[Fields]) -> Fields:
        answer, request = self.answer, self._request
        wanted = request.text.format.model_dump(by_alias=True, exclude_none=True, exclude_defaults=True)
        return request.model_dump(include=REPEATED) | {
            "id": PREFIX + answer.identifier,
            "object": "response",
            "created_at": answer.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": answer.model,
            "output": output,
            "reasoning": {"effort": request.reasoning.effort, "summary": None},
            "store": self._kept is not None,
            "text": {"format": {"type": request.text.format.type, **wanted}, "verbosity": "medium"},
            "usage": None,
            "moa": {"seed": answer.seed},
        }


def _part(kind: str, text: str) -> Fields:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
