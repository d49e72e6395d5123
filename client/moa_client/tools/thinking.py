"""How families of models mark reasoning, and what a chat template is given that asks for more or less of it. Pure.

Sources: the chat templates of DeepSeek-R1, Qwen3, Magistral and Gemma 4, and
https://github.com/openai/harmony/blob/main/docs/format.md.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from moa_shared.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Marks:
    """How an answer marks reasoning.

    Args:
        openings, closings: around it.
        repeated: it may come anywhere; otherwise only where an answer begins, with nothing but white space before it.
        others: outside of reasoning, which people are not shown.
    """

    openings: tuple[str, ...] = ()
    closings: tuple[str, ...] = ()
    repeated: bool = False
    others: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        return self.openings + self.closings + self.others


@dataclass(frozen=True, slots=True)
class Thinking(Marks):
    """How a family marks it.

    Args:
        sign: what its chat templates contain.
        first_mark: what every opening begins with, or each beginning of a message.
        channels: what may follow it where no reasoning begins.
        next_message: what comes between reasoning and what is after it; empty: white space.
        answer: what an answer that calls nothing begins with after that.
    """

    sign: str = ""
    first_mark: str = ""
    channels: tuple[str, ...] = ()
    next_message: str = ""
    answer: str = ""

    def is_open(self, prompt: str) -> bool:
        """Whether a prompt ends within reasoning, so that the answer begins with it."""
        return prompt.rstrip().endswith(tuple(opening.rstrip() for opening in self.openings))


@dataclass(frozen=True, slots=True)
class ReasoningMarks(Marks):
    """How the answers of one model mark it, for surfaces.

    `opened`: the values of `reasoning_effort` with which the prompt has opened reasoning, so that the answer begins
    within it; "": nothing was asked. `efforts`: the values of `reasoning_effort` that the model can be asked for.
    """

    opened: tuple[str, ...] = ()
    efforts: tuple[str, ...] = ()


_START = "<|start|>assistant"
_ANALYSIS = "<|channel|>analysis<|message|>"
_HEADERS = tuple(f"{start}<|channel|>{name}<|message|>" for start in ("", _START) for name in ("final", "commentary"))
THINKINGS = (
    Thinking(
        (_ANALYSIS, f"{_START}{_ANALYSIS}"),
        ("<|end|>", "<|return|>"),
        repeated=True,
        others=(*_HEADERS, "<|end|>", "<|return|>"),
        sign="<|channel|>analysis",
        first_mark="<|channel|>",
        channels=("final", "commentary"),
        next_message=_START,
        answer="<|channel|>final<|message|>",
    ),
    Thinking(("<|channel>thought\n",), ("<channel|>",), True, sign="<|channel>thought", first_mark="<|channel>"),
    Thinking(("[THINK]",), ("[/THINK]",), sign="[THINK]"),
    Thinking(("<think>",), ("</think>",), sign="<think>"),
)


def find_thinking(chat_template: str) -> Thinking | None:
    """How a model with this chat template marks reasoning; None: it has none that is known."""
    return next((each for each in THINKINGS if each.sign in chat_template), None)


EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")  # OpenAI's
_GRADES = ("low", "medium", "high")  # that every template with `reasoning_effort` knows
_EFFORT, _SWITCHES = "reasoning_effort", ("enable_thinking", "thinking")


def uses(chat_template: str, name: str) -> bool:
    """Whether a template's code, rather than its text, uses a variable."""
    return re.search(r"\{[%{][^%}]*(?<![.\w'\"])" + re.escape(name) + r"(?![\w'\"])", chat_template) is not None


def effort_arguments(chat_template: str, effort: str | None) -> dict[str, Any]:
    """The arguments of a template that ask for an effort; `effort`: one of `EFFORTS`; None: as the model has it."""
    if effort is None:
        return {}
    switch = next((name for name in _SWITCHES if uses(chat_template, name)), None)
    if uses(chat_template, _EFFORT):
        if effort in _GRADES or re.search(f"['\"]{effort}['\"]", chat_template):
            switched = {switch: effort != "none"} if switch is not None else {}
            return {_EFFORT: effort, **switched}
        if effort != "none" or switch is None:
            raise ConfigError(
                f"This model cannot reason with the effort {effort!r}.", hint=f"It knows {', '.join(_GRADES)}."
            )
    if switch is not None:
        return {switch: effort != "none"}
    if effort == "medium" or (effort == "none" and find_thinking(chat_template) is None):
        return {}  # what it does anyway
    if find_thinking(chat_template) is None:
        raise ConfigError("This model does not reason before it answers.", hint="Leave it out.")
    raise ConfigError("This model always reasons as much as it does.", hint="Leave it out.")


def have_any(marks: Iterable[str], special_tokens: Iterable[str]) -> bool:
    """Whether some of these special tokens are in marks, so that text without special tokens would lack them."""
    tokens = tuple(special_tokens)
    return any(token in mark for mark in marks for token in tokens)


def marks_from(fields: Mapping[str, Any] | None) -> ReasoningMarks | None:
    """The marks that `dataclasses.asdict` has made an object of; None: the model marks no reasoning."""
    if fields is None:
        return None
    made: dict[str, Any] = {name: tuple(each) if isinstance(each, list) else each for name, each in fields.items()}
    return ReasoningMarks(**made)
