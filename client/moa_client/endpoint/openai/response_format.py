"""The form that a request wants its answer to have: OpenAI's `response_format`, vLLM's `structured_outputs`. Pure."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from moa_shared.errors import ConfigError
from moa_shared.sampling.constraint import Constraint, ConstraintKind, choice_of
from pydantic import Field

from moa_client.endpoint.fields import RequestFields, refused
from moa_client.web.error_form import RequestError


class TextFormat(RequestFields):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(RequestFields):
    """Any JSON object."""

    type: Literal["json_object"]


class NamedSchema(RequestFields):
    """A JSON schema; `strict` or not, it is enforced."""

    name: str = Field("", max_length=64)
    description: str | None = None
    json_schema: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class JsonSchemaFormat(RequestFields):
    """JSON of a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]


class StructuredOutputs(RequestFields):
    """vLLM's extension: exactly one of these.

    Args:
        json_schema: a schema, or its text.
        regex: a regular expression.
        choice: the texts to choose from.
        grammar: in Lark's language.
    """

    json_schema: dict[str, Any] | str | None = Field(None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None


def constraint_of(
    wanted: ResponseFormat | None, structured: StructuredOutputs | None, param: str = "response_format"
) -> Constraint | None:
    """The constraint that a request asks for; None: any text.

    Args:
        param: the name of the parameter that has `wanted`.

    Raises:
        RequestError: it cannot be one, or there are two.
    """
    if wanted is not None and not isinstance(wanted, TextFormat) and structured is not None:
        raise refused("structured_outputs", f"give either it or {param}")
    param = param if structured is None else "structured_outputs"
    try:
        return _of_format(wanted) if structured is None else _of_extension(structured)
    except ConfigError as error:
        raise RequestError(400, error.message, param=param, code="invalid_value") from None


def _of_format(wanted: ResponseFormat | None) -> Constraint | None:
    match wanted:
        case JsonObjectFormat():
            return Constraint(ConstraintKind.JSON_OBJECT)
        case JsonSchemaFormat():
            return _schema(wanted.json_schema.json_schema)
        case _:
            return None


def _of_extension(structured: StructuredOutputs) -> Constraint:
    given = structured.model_dump(exclude_none=True)
    if len(given) != 1:
        raise ConfigError(f"Exactly one of json, regex, choice and grammar is expected, {len(given)} were given.")
    match structured:
        case StructuredOutputs(json_schema=str(text)):
            return Constraint(ConstraintKind.JSON_SCHEMA, text)
        case StructuredOutputs(json_schema=dict(schema)):
            return _schema(schema)
        case StructuredOutputs(regex=str(text)):
            return Constraint(ConstraintKind.REGEX, text)
        case StructuredOutputs(choice=list(texts)):
            return choice_of(texts)
        case _:
            return Constraint(ConstraintKind.LARK, structured.grammar or "")


def _schema(schema: dict[str, Any]) -> Constraint:
    return Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(schema, ensure_ascii=False))
