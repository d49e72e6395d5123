"""What form an answer must have: a JSON schema, an expression, a grammar. Light, so that command lines import it; pure.

Part of how tokens are chosen, and so of what the text depends on. `moa_shared.constraints` computes with it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

from moa_shared.errors import ConfigError

MOST_BYTES = 1 << 18  # of a constraint's text: OpenAI's largest schemas have 120,000 characters
MOST_CHOICES = 1000


class ConstraintKind(IntEnum):
    """The language of a constraint; the numbers are those of the wire (moa.v1.Constraint)."""

    JSON_SCHEMA = 1
    JSON_OBJECT = 2
    REGEX = 3
    CHOICE = 4
    LARK = 5

    @property
    def label(self) -> str:
        """What people call it."""
        return _LABELS[self]


_LABELS = {
    ConstraintKind.JSON_SCHEMA: "JSON schema",
    ConstraintKind.JSON_OBJECT: "JSON object",
    ConstraintKind.REGEX: "regular expression",
    ConstraintKind.CHOICE: "choice",
    ConstraintKind.LARK: "Lark grammar",
}


@dataclass(frozen=True, slots=True)
class Constraint:
    """The form of an answer.

    Args:
        text: the schema as JSON, the expression, the texts to choose from as a JSON array, or the grammar; empty for
            JSON_OBJECT.

    Raises:
        ConfigError: a text that is too long, or not of its kind.
    """

    kind: ConstraintKind
    text: str = ""

    def __post_init__(self) -> None:
        _check(self.kind, self.text)

    @property
    def choices(self) -> tuple[str, ...]:
        """The texts that a CHOICE may be."""
        return tuple(json.loads(self.text))


def choice_of(texts: list[str]) -> Constraint:
    """A constraint to one of some texts.

    Raises:
        ConfigError: none, too many, or an empty one.
    """
    _check_choices(texts)
    return Constraint(ConstraintKind.CHOICE, json.dumps(texts, ensure_ascii=False))


@lru_cache(8)  # a question's is made twice: to compile it, and among its settings
def _check(kind: ConstraintKind, text: str) -> None:
    label, size = kind.label, len(text.encode())
    if size > MOST_BYTES:
        raise ConfigError(f"The {label} has {size:,} bytes, at most {MOST_BYTES:,} are allowed.")
    if (kind is ConstraintKind.JSON_OBJECT) is bool(text):
        raise ConfigError(f"The {label} has {'a text, expected none' if text else 'no text'}.")
    if kind is ConstraintKind.JSON_SCHEMA and not isinstance(_parsed(text, label), dict | bool):
        raise ConfigError(f"The {label} is not a JSON object.")
    if kind is ConstraintKind.CHOICE:
        _check_choices(_parsed(text, label))


def _parsed(text: str, label: str) -> object:
    try:
        parsed: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"The {label} is not JSON: {error}.") from None
    return parsed


def _check_choices(texts: object) -> None:
    if not isinstance(texts, list) or not all(isinstance(each, str) and each for each in texts):
        raise ConfigError("The choice is not an array of texts, each of one character or more.")
    if not 0 < len(texts) <= MOST_CHOICES:
        raise ConfigError(f"The choice is of {len(texts)} texts, expected 1 to {MOST_CHOICES}.")
