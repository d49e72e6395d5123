"""What all parts of a request have in common: how fields are read, and how one is refused by its name.

Names that would change an answer and that moa has nothing for are refused. Whatever else is unknown is ignored, at
every depth: vendors add fields each month, and programs send them back.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar, TypeVar

from moa_shared.errors import ConfigError
from moa_shared.programs.config import plain_words
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from moa_client.web.access import RequestError

MOST_MESSAGES = 1000  # each is rendered, and looked for in what was rendered
BLOCKS = ("text", "tool_use", "tool_result", "thinking", "redacted_thinking")  # of Anthropic's messages
ITEMS = ("message", "function_call", "function_call_output", "reasoning")  # of responses
ALTERNATIVES = (*BLOCKS, *ITEMS)
TEXT_TYPES = (None, "text", "input_text", "output_text", "refusal")  # without one: as kept responses have them
AnyFields = TypeVar("AnyFields", bound="RequestFields")


Refusals = Mapping[str, tuple[str, tuple[Any, ...]]]  # why, and the values that ask for nothing special besides null


def _refusals(words: str, **harmless: Any) -> Refusals:
    """Names with their one harmless value; ...: there is none."""
    return {name: (words, () if value is ... else (value,)) for name, value in harmless.items()}


REFUSED: Refusals = {
    **_refusals("There is no such sampler.", mirostat=0, typical_p=1, dry_multiplier=0, xtc_probability=0),
    **_refusals("Send `repeat_penalty`, which is another measure.", repetition_penalty=1),
    **_refusals("Answers end where the model ends them.", min_tokens=0, ignore_eos=False),
    **_refusals("Send `structured_outputs`.", guided_json=..., guided_regex=..., guided_choice=..., grammar=""),
    **_refusals("In this API it has another name.", max_tokens=..., max_completion_tokens=..., response_format=...),
    **_refusals("Ask several times.", n=1, best_of=1),
    **_refusals("Ask `/v1/chat/completions`.", logprobs=False, top_logprobs=0),
    **_refusals("Texts are only continued at their end, and not repeated.", suffix="", echo=False),
    **_refusals("The older form of `tools`: send these.", functions=[]),
    "function_call": ("The older form of `tool_choice`: send that.", ("none", "auto")),
    **_refusals("Send `reasoning_effort`, or what this API has for it.", chat_template_kwargs={}, enable_thinking=...),
    **_refusals("Send `thinking_token_budget`.", thinking_budget=...),
    **_refusals("Models read text only.", images=[]),
    **_refusals("Continue a response with `previous_response_id`.", conversation=...),
    **_refusals("Vectors are as wide as the model's states.", dimensions=...),
}
REFUSED_IN_MESSAGES: Refusals = {
    **_refusals("The older form of `tool_calls`: send these.", function_call=...),
    **_refusals("Models read text only.", images=[]),
    **_refusals("Answers are not continued.", prefix=False, partial=False),
}
REFUSED_HERE: Refusals = _refusals("Streams have committed text only.", provisional=False)


class RequestFields(BaseModel):
    """A JSON object in a request: types are not converted, null counts as absent, and unknown fields are ignored.

    Attributes:
        refused: unknown fields that are refused instead.
    """

    model_config = ConfigDict(strict=True, extra="ignore")
    refused: ClassVar[Refusals] = {}

    @model_validator(mode="before")
    @classmethod
    def _given(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        for name, each in value.items():
            words, harmless = cls.refused.get(name, ("", ()))
            if words and each is not None and name not in cls.names() and each not in harmless:
                raise PydanticCustomError("refused", "{words}", {"name": name, "words": words})
        return {name: each for name, each in value.items() if each is not None}

    @classmethod
    def names(cls) -> set[str]:
        """Of its fields, as requests have them."""
        return {field.alias or name for name, field in cls.model_fields.items()}


def _joined(between: str) -> Callable[[object], object]:
    """Makes a text of a text, or of a list of parts that are text."""

    def text(content: object) -> object:
        if isinstance(content, str):
            return content
        if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
            raise PydanticCustomError("content", "expected a text, or a list of parts of type text")
        texts = []
        for number, part in enumerate(content):
            kind = part.get("type")
            text = part.get("refusal" if kind == "refusal" else "text")
            if kind not in TEXT_TYPES:
                words = "part {number} is of type {kind}: models read text only"
                raise PydanticCustomError("content", words, {"number": number, "kind": str(kind)[:64]})
            if not isinstance(text, str):
                raise PydanticCustomError("content", "part {number} has no text", {"number": number})
            texts.append(text)
        return between.join(texts)

    return text


Text = Annotated[str, BeforeValidator(_joined(""))]
Paragraphs = Annotated[str, BeforeValidator(_joined("\n\n"))]


def parsed_request(kind: type[AnyFields], body: Mapping[str, Any]) -> AnyFields:
    """The request of a body. RequestError: it cannot be followed."""
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise _first_problem(error) from None


def refused(param: str, words: str) -> RequestError:
    return RequestError(400, f"{param}: {words}.", param=param, code="invalid_value")


def missing(param: str) -> RequestError:
    return RequestError(400, f"{param} is missing.", param=param, code="missing_required_parameter")


def refuse_continuing(messages: Sequence[Any]) -> None:
    """Refuses messages of which the last is from the assistant."""
    if messages[-1].role == "assistant":
        path = f"messages[{len(messages) - 1}].role"
        raise refused(path, "the last message must not be from assistant: answers are not continued")


@contextmanager
def refusing(param: str = "") -> Iterator[None]:
    """Refuses the parameter if the block finds that it cannot be used; without a name, the one that is found."""
    try:
        yield
    except ConfigError as error:
        if param:
            hint = "" if error.hint == error.default_hint else error.hint  # which is of options
            raise refused(param, f"{error.message} {hint}".rstrip(" .")) from None
        found = error.message.partition(" ")[0]
        raise RequestError(400, error.message, param=found, code="invalid_value") from None


def _first_problem(error: ValidationError) -> RequestError:
    # what kind of object it is comes before what such an object lacks
    first = min(error.errors(include_url=False), key=lambda each: each["loc"][-1:] != ("type",))
    param, more = _path(first["loc"]), first.get("ctx", {})
    match first["type"]:
        case "missing":
            return missing(param)
        case "refused":
            param = f"{param}.{more['name']}".lstrip(".")
            words = f"{param} is not supported. {more['words']}"
            return RequestError(400, words, param=param, code="unsupported_parameter")
        case "union_tag_not_found":
            return missing(f"{param}.type")
        case "union_tag_invalid":
            there = more["expected_tags"].replace("'", "")
            words = f"{param}.type is {more['tag'][:64]!r}, which is not supported. What there is: {there}."
            return RequestError(400, words, param=f"{param}.type", code="unsupported_parameter")
    return refused(param, plain_words(first["msg"]))


def _path(loc: tuple[int | str, ...]) -> str:
    """Such as messages[0].role; without the names of types that alternatives have in it."""
    path = ""
    for number, part in enumerate(loc):
        if isinstance(part, int):
            path += f"[{part}]"
        elif part in ALTERNATIVES and isinstance(loc[number - 1], int) and number < len(loc) - 1:
            continue
        elif part not in ("str", "list[int]"):
            path += f".{part}" if path else part
    return path
