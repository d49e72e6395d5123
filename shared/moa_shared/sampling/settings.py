"""How a token is chosen: settings that both ends share, levels of execution, the form of an answer, told chances.

Levels are the arithmetic that a target is computed in (docs/engine.md): at `int8` a row's bits do not depend on what
is computed with it; at `bf16` they do; at `float32` hardly. Light, so that command lines import it; pure.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import lru_cache
from typing import Any

from moa_shared.errors import ConfigError

SEED_LIMIT = 1 << 64
# Logits of up to 10,000, divided by it, are still told apart by one in float32; divided by far less they are infinite.
LEAST_TEMPERATURE = 1e-3
MOST_BIAS = 100.0  # either way, and
MOST_BIASED_TOKENS = 300  # of one question: OpenAI's limits
TOKEN_LIMIT = 1 << 32  # a token id on the wire
REPEAT_LAST_N = 64  # llama.cpp's default
WHOLE_CONTEXT = -1  # as repeat_last_n

TokenBias = tuple[tuple[int, float], ...]
# The least and the most that each setting may be, and that in words; NaN is between none.
_BOUNDS: Mapping[str, tuple[float, float, str]] = {
    "temperature": (LEAST_TEMPERATURE, 100, f"0 (greedy) or {LEAST_TEMPERATURE:g} to 100"),
    "top_k": (0, (1 << 31) - 1, "0 (off) or more"),
    "top_p": (math.ulp(0.0), 1, "more than 0 and at most 1"),
    "seed": (0, SEED_LIMIT - 1, "0 to 2**64 - 1"),
    "min_p": (0, 1, "0 (off) to 1"),
    "repeat_penalty": (1e-2, 1e2, "0.01 to 100; 1 is off"),  # as of temperature; llama.cpp's users set 1.0 to 1.5
    "repeat_last_n": (WHOLE_CONTEXT, (1 << 31) - 1, "-1 (all tokens), 0 (off) or more"),
    "presence_penalty": (-2.0, 2.0, "-2 to 2"),  # OpenAI's range
    "frequency_penalty": (-2.0, 2.0, "-2 to 2"),
}


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is chosen from the target's distribution; ConfigError: a value outside its range."""

    temperature: float = 0.0  # divides the logits; 0 is greedy (no noise)
    top_k: int = 0  # keep only the k likeliest tokens (and those tied with the last of them); 0 keeps all
    top_p: float = 1.0  # keep the smallest set of likeliest tokens whose probabilities reach this sum; 1 keeps all
    seed: int = 0  # keys the noise: the same seed gives the same text
    min_p: float = 0.0  # after top-p, drop tokens with less than this share of the likeliest one's probability
    # Divides positive logits, and multiplies negative ones, of the newest tokens, the prompt's too (llama.cpp's).
    repeat_penalty: float = 1.0  # 1 is off
    repeat_last_n: int = REPEAT_LAST_N  # 0: none, -1: all tokens
    presence_penalty: float = 0.0  # taken off the logits of tokens that the answer has (OpenAI's)
    frequency_penalty: float = 0.0  # taken off once for each time that the answer has the token (OpenAI's)
    logit_bias: TokenBias = ()  # what is added to the logits of token ids; kept in the order of the ids
    constraint: Constraint | None = None  # the form that the answer must have; None: any
    # No setting of the user: position of the answer's first token, where an end has filled it in (`within`).
    answer_start: int = 0

    def __post_init__(self) -> None:
        for name, (least, most, expected) in _BOUNDS.items():
            if not least <= (value := getattr(self, name)) <= most and (name != "temperature" or value != 0):
                raise ConfigError(f"{name} is {value}, expected {expected}.")
        if self.logit_bias:
            _check_bias(self.logit_bias)
            object.__setattr__(self, "logit_bias", tuple(sorted(self.logit_bias)))

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def adjusts(self) -> bool:
        """Whether logits are changed before a token is chosen from them."""
        return bool(self.logit_bias) or self.reads_text

    @property
    def reads_text(self) -> bool:
        """Whether that depends on the text before a token."""
        return self.penalises_answer or self.penalises_repeats

    @property
    def penalises_repeats(self) -> bool:
        return self.repeat_penalty != 1.0 and self.repeat_last_n != 0

    @property
    def penalises_answer(self) -> bool:
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    def looks_back(self, length: int) -> int:
        """How many of the newest of `length` tokens the penalties of the next one look at."""
        answer = length - self.answer_start if self.penalises_answer else 0
        repeats = self.repeat_last_n if self.penalises_repeats else 0
        return length if repeats == WHOLE_CONTEXT else min(length, max(answer, repeats, 0))

    def within(self, answer_start: int) -> Sampling:
        """The same for an answer that starts there; itself where that does not matter."""
        matters = self.penalises_answer or self.constraint is not None
        return replace(self, answer_start=answer_start) if matters else self


def _check_bias(bias: TokenBias) -> None:
    if len(bias) > MOST_BIASED_TOKENS:
        raise ConfigError(f"logit_bias names {len(bias)} tokens, at most {MOST_BIASED_TOKENS} are allowed.")
    if len({token for token, _ in bias}) < len(bias):
        raise ConfigError("logit_bias names a token twice.")
    for token, value in bias:
        if not 0 <= token < TOKEN_LIMIT:
            raise ConfigError(f"logit_bias names token {token}, expected an id of 0 to {TOKEN_LIMIT - 1}.")
        if not abs(value) <= MOST_BIAS:
            raise ConfigError(f"logit_bias of token {token} is {value}, expected -{MOST_BIAS:g} to {MOST_BIAS:g}.")


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
        words = self.name.lower().replace("_", " ").replace("regex", "regular expression")
        return words.replace("json", "JSON").replace("lark", "Lark grammar")


@dataclass(frozen=True, slots=True)
class Constraint:
    """The form of an answer; ConfigError: a text that is too long, or not of its kind."""

    kind: ConstraintKind
    text: str = ""  # the schema as JSON, the expression, the texts to choose from as a JSON array, or the grammar

    def __post_init__(self) -> None:
        _check(self.kind, self.text)

    @property
    def choices(self) -> tuple[str, ...]:
        return tuple(json.loads(self.text))


def choice_of(texts: list[str]) -> Constraint:
    return Constraint(ConstraintKind.CHOICE, json.dumps(texts, ensure_ascii=False))


@lru_cache(8)  # a question's is made twice: to compile it, and among its settings
def _check(kind: ConstraintKind, text: str) -> None:
    label, size = kind.label, len(text.encode())
    if size > MOST_BYTES:
        raise ConfigError(f"The {label} has {size:,} bytes, at most {MOST_BYTES:,} are allowed.")
    if (kind is ConstraintKind.JSON_OBJECT) is bool(text):
        raise ConfigError(f"The {label} has {'a text, expected none' if text else 'no text'}.")
    if kind not in (ConstraintKind.JSON_SCHEMA, ConstraintKind.CHOICE):
        return
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"The {label} is not JSON: {error}.") from None
    if kind is ConstraintKind.JSON_SCHEMA and not isinstance(parsed, dict | bool):
        raise ConfigError(f"The {label} is not a JSON object.")
    if kind is ConstraintKind.CHOICE:
        if not isinstance(parsed, list) or not all(isinstance(each, str) and each for each in parsed):
            raise ConfigError("The choice is not an array of texts, each of one character or more.")
        if not 0 < len(parsed) <= MOST_CHOICES:
            raise ConfigError(f"The choice is of {len(parsed)} texts, expected 1 to {MOST_CHOICES}.")


MOST_LIKELIEST = 20  # OpenAI's limit


@dataclass(frozen=True, slots=True)
class WantedChances:
    """What an asker wants to know of the tokens of its answer; ConfigError: more than 20 of the likeliest."""

    likeliest: int = 0  # how many of the likeliest tokens at each place
    processed: bool = False  # after biases, penalties, temperature, top-k, top-p, min-p and the constraint; else before

    def __post_init__(self) -> None:
        if not 0 <= self.likeliest <= MOST_LIKELIEST:
            raise ConfigError(f"{self.likeliest} likeliest tokens were asked for, expected 0 to {MOST_LIKELIEST}.")


@dataclass(frozen=True, slots=True)
class TokenChances:
    """Natural logarithms of probabilities at one place of a text."""

    chosen: float  # of the token that stands there
    tokens: tuple[int, ...] = ()  # the likeliest ones, likeliest first
    chances: tuple[float, ...] = ()  # theirs


# What a model, or the interface of a program, says about sampling: some of these settings of `Sampling`, by name.
SamplingDefaults = Mapping[str, Any]
DEFAULTED = ("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n")
# Of chats, where neither user nor model says anything. Greedy answers of small models repeat themselves for ever.
CHAT_DEFAULTS: SamplingDefaults = {"temperature": 0.7, "top_p": 0.95}


def sampling_defaults(generation: Mapping[str, Any]) -> SamplingDefaults:
    """The defaults in the content of generation_config.json."""
    values: dict[str, Any] = {}
    for ours in DEFAULTED:
        name = "repetition_penalty" if ours == "repeat_penalty" else ours
        if (value := generation.get(name)) is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{name} is {value!r}, expected a number")
        is_whole = ours in ("top_k", "repeat_last_n")
        if is_whole and value != int(value):
            raise ValueError(f"{name} is {value!r}, expected a whole number")
        values[ours] = int(value) if is_whole else float(value)
    if values.get("top_k", 0) < 0:  # how some write that all tokens are kept
        values["top_k"] = 0
    if "repeat_penalty" in values:
        values.setdefault("repeat_last_n", WHOLE_CONTEXT)  # transformers looks at all of the text
    if not isinstance(samples := generation.get("do_sample"), bool | None):
        raise ValueError(f"do_sample is {samples!r}, expected true or false")
    if samples is False:
        values["temperature"] = 0.0
    Sampling(**values)
    return values


# That all of a standalone text is right, for it to be shown: of such text about three in five tokens are kept
# (docs/measurements/drafters.md).
LEAST_CHANCE = 0.35
INT8, FLOAT32, BF16 = "int8", "float32", "bf16"
LEVELS = (INT8, FLOAT32, BF16)
