"""What several APIs have in common: how answers are sampled, their form, the tools they may call, and messages."""

import base64
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from moa_shared.errors import ConfigError
from moa_shared.sampling.settings import Constraint, ConstraintKind, WantedChances, choice_of
from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from moa_client.conversation.options import AnswerOptions, draw_seed, token_bias
from moa_client.endpoint.ask import HostModel, Messages, Vectors, schema_form
from moa_client.endpoint.fields import (
    REFUSED,
    REFUSED_HERE,
    REFUSED_IN_MESSAGES,
    RequestFields,
    Text,
    missing,
    refuse_continuing,
    refused,
    refusing,
)
from moa_client.settings import DEFAULT_MODEL
from moa_client.tools.tool import Tool, ToolOffer, ToolResult, check_tools, offer_of
from moa_client.tools.turns import ChatMessage

MOST_STOPS, MOST_STOP = 16, 64  # characters of each
Finite = Annotated[float, Field(allow_inf_nan=False)]
Limit = Annotated[int, Field(ge=1, lt=1 << 31)]
Texts = Annotated[
    list[str],
    Field(max_length=MOST_STOPS),
    BeforeValidator(lambda stop: [stop] if isinstance(stop, str) else stop),
]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]


class SamplingFields(RequestFields):
    """How answers are chosen, and where they end, as OpenAI's and ollama's requests name it."""

    temperature: Finite | None = None
    top_p: Finite | None = None
    top_k: int | None = None
    min_p: Finite | None = None
    repeat_penalty: Finite | None = None
    repeat_last_n: int | None = None
    presence_penalty: Finite = 0.0
    frequency_penalty: Finite = 0.0
    stop: Texts = Field(default_factory=list)

    def sampled(self, **more: Any) -> AnswerOptions:
        """The options of an answer; `more`: that have other names in each API."""
        names = SamplingFields.model_fields.keys() - {"stop"}
        return AnswerOptions(**{name: getattr(self, name) for name in names}, stop=tuple(self.stop), **more)


class NamedSchema(RequestFields):
    """A JSON schema; `strict` or not, it is enforced."""

    name: str = Field("", max_length=64)
    description: str | None = None
    json_schema: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


FormKind = Literal["text", "json_object", "json_schema"]


class StructuredOutputs(RequestFields):
    """vLLM's extension: exactly one of these; a schema may also be its text."""

    json_schema: dict[str, Any] | str | None = Field(None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None

    def constraint(self) -> Constraint:
        given = self.model_dump(exclude_none=True)
        if len(given) != 1:
            raise ConfigError(f"Exactly one of json, regex, choice and grammar is expected, {len(given)} were given.")
        if isinstance(self.json_schema, dict):
            return schema_form(self.json_schema)
        if self.json_schema is not None:
            return Constraint(ConstraintKind.JSON_SCHEMA, self.json_schema)
        if self.choice is not None:
            return choice_of(self.choice)
        kind = ConstraintKind.LARK if self.regex is None else ConstraintKind.REGEX
        return Constraint(kind, self.regex or self.grammar or "")


class Extensions(RequestFields):
    """What only this endpoint has.

    `unverified`: what becomes of an answer that the server does not verify in time; None: as the daemon is set.
    `logprobs`: those of the model, or after all settings, of the distribution that tokens are drawn from.
    """

    refused = REFUSED_HERE
    unverified: Literal["end", "fail"] | None = None
    logprobs: Literal["raw", "processed"] = "raw"


class AnswerRequest(SamplingFields):
    refused = REFUSED
    model: str = DEFAULT_MODEL
    stream: bool = False
    logit_bias: dict[str, float] = Field(default_factory=dict)
    loop_guard: bool = True
    seed: int = Field(default_factory=draw_seed, ge=-(1 << 63), lt=1 << 64)
    structured_outputs: StructuredOutputs | None = None
    moa: Extensions = Extensions()

    def answer_options(
        self, most_tokens: int, param: str, kind: FormKind, schema: NamedSchema | None, likeliest: int | None = None
    ) -> AnswerOptions:
        """The options of the answer.

        Args:
            most_tokens: of the answer; 0: as the context allows.
            param: that says which form it must have; or `structured_outputs` does.
            likeliest: how many of the likeliest tokens are told at each place, with all chances; None: no chances.
        """
        check_stops("stop", self.stop)
        if kind != "text" and self.structured_outputs is not None:
            raise refused("structured_outputs", f"give either it or {param}")
        chances = None
        if likeliest is not None:
            chances = WantedChances(likeliest, processed=self.moa.logprobs == "processed")
        form = None
        with refusing(param if self.structured_outputs is None else "structured_outputs"):
            if self.structured_outputs is not None:
                form = self.structured_outputs.constraint()
            elif kind == "json_object":
                form = Constraint(ConstraintKind.JSON_OBJECT)
            elif kind == "json_schema":
                if schema is None or schema.json_schema is None:
                    raise missing(f"{param}{'.json_schema' if param == 'response_format' else ''}.schema")
                form = schema_form(schema.json_schema)
        with refusing():
            options = self.sampled(
                seed=self.seed % (1 << 64),  # a negative one is another name of a large one
                max_tokens=most_tokens,
                logit_bias=token_bias(self.logit_bias),
                loop_guard=self.loop_guard,
                chances=chances,
            )
            options.settings()
        return replace(options, constraint=form)


def check_stops(param: str, stops: Sequence[str]) -> None:
    if not all(0 < len(stop) <= MOST_STOP for stop in stops):
        raise refused(param, f"each text must have 1 to {MOST_STOP} characters")


class FunctionField(RequestFields):
    """A function. Its schema is enforced where a call is required, `strict` or not."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=dict)
    strict: bool | None = None


class ToolField(RequestFields):
    type: Literal["function"]
    function: FunctionField


def tool_offer(
    functions: Sequence[FunctionField], choice: Any = None, *, is_parallel: bool = True, at: str = ".function"
) -> ToolOffer:
    """What a request offers.

    `choice`: its `tool_choice`, which names a function as its tools do. `at`: where a tool of the request has its
    function; empty: it is one.
    """
    name = None
    match choice, at:
        case ((None | "auto" | "none" | "required"), _):
            pass
        case ({"type": "function", "function": {"name": str(each)}}, ".function") | (
            {"type": "function", "name": str(each)},
            "",
        ):
            name = each
        case _:
            named = "'name': ..." if not at else "'function': {'name': ...}"
            raise refused("tool_choice", f"expected 'auto', 'none', 'required' or {{'type': 'function', {named}}}")
    tools = []
    for number, function in enumerate(functions):
        with refusing(f"tools[{number}]{at}"):
            parameters = function.parameters or {"type": "object", "properties": {}}
            tools.append(Tool(function.name, function.description, parameters))
    with refusing("tools"):
        check_tools(tools)
    with refusing("tool_choice"):
        offered = [] if choice == "none" else tools
        return offer_of(offered, is_forced=choice == "required", name=name, is_parallel=is_parallel)


def as_prompts(value: object) -> object:
    """Texts, or the tokens of each: one may stand alone."""
    prompts = value if isinstance(value, list) and any(isinstance(each, str | list) for each in value) else [value]
    if not all(isinstance(prompt, str | list) and prompt for prompt in prompts):
        words = "expected a text that is not empty, or the ids of its tokens, or a list of several of these"
        raise PydanticCustomError("prompt", words)
    return prompts


class CalledFunction(RequestFields):
    """Its arguments are an object, or the text of one."""

    name: str
    arguments: Annotated[
        str,
        BeforeValidator(
            lambda given: json.dumps(given, ensure_ascii=False) if isinstance(given, dict) else given or "{}"
        ),
    ] = "{}"


class CallField(RequestFields):
    id: str = ""
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(RequestFields):
    """A message of OpenAI's chats and of ollama's, which has no ids in older clients."""

    refused = REFUSED_IN_MESSAGES
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text = ""
    name: str = ""
    refusal: str = ""
    reasoning_content: str = ""
    tool_calls: list[CallField] = Field(default_factory=list)
    tool_call_id: str = ""
    tool_name: str = ""


def conversation(messages: Sequence[Message]) -> list[ChatMessage | ToolResult]:
    """The messages as templates are prepared for.

    Templates know one system prompt, at the beginning: all messages of the system there become one.
    """
    refuse_continuing(messages)
    leading = next((at for at, each in enumerate(messages) if each.role not in ("system", "developer")), len(messages))
    said = Messages()
    if leading:
        said.made.append(ChatMessage("system", "\n\n".join(message.content for message in messages[:leading])))
    for number, message in enumerate(messages[leading:], leading):
        path, text = f"messages[{number}]", message.content + message.refusal
        if message.tool_calls and message.role != "assistant":
            raise refused(f"{path}.tool_calls", "only a message from assistant has calls")
        match message.role:
            case "tool":
                tool = message.tool_name or message.name
                said.add_result(f"{path}.tool_call_id", message.tool_call_id, text, tool)
            case "assistant":
                calls = [
                    said.call(f"{path}.tool_calls[{place}]", call.id, call.function.name, call.function.arguments)
                    for place, call in enumerate(message.tool_calls)
                ]
                said.made.append(ChatMessage("assistant", text, tuple(calls), message.name, message.reasoning_content))
            case role:
                said.made.append(ChatMessage("user" if role == "user" else "system", text, name=message.name))
    return said.made


MOST_TEXTS = 256


class EmbeddingRequest(RequestFields):
    refused = REFUSED
    model: str = DEFAULT_MODEL
    input: Annotated[list[str | list[int]], BeforeValidator(as_prompts)] = Field(max_length=MOST_TEXTS)
    encoding_format: Literal["float", "base64"] = "float"

    def texts(self, model: HostModel) -> list[list[int]]:
        texts = [model.encode(each) if isinstance(each, str) else each for each in self.input]
        for number, tokens in enumerate(texts):
            if not all(0 <= token < model.vocab_size for token in tokens):
                raise refused(f"input[{number}]", f"expected ids of tokens from 0 to {model.vocab_size - 1}")
            if len(tokens) > model.context_tokens:
                words = f"the text has {len(tokens)} tokens, the context {model.context_tokens}: send it in parts"
                raise refused(f"input[{number}]", words)
        return texts

    def response(self, model: str, texts: Sequence[Sequence[int]], vectors: Vectors) -> dict[str, Any]:
        tokens, made = sum(map(len, texts)), enumerate(_written(each, self.encoding_format) for each in vectors[0])
        return {
            "object": "list",
            "data": [{"object": "embedding", "index": number, "embedding": each} for number, each in made],
            "model": model,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            "moa": vectors[1],
        }


def _written(vector: Sequence[float], encoding: str) -> list[float] | str:
    numbers = np.asarray(vector, dtype="<f4")
    numbers /= max(float(np.linalg.norm(numbers)), np.finfo(np.float32).tiny)
    return base64.b64encode(numbers.tobytes()).decode() if encoding == "base64" else numbers.tolist()
