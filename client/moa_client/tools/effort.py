"""What a request for more or less reasoning is to a chat template. Pure.

Templates differ: gpt-oss' has `reasoning_effort`, Qwen's `enable_thinking`, DeepSeek's and Granite's `thinking`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from moa_shared.errors import ConfigError

from moa_client.tools.thinking import find_thinking

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")  # OpenAI's
_GRADES = ("low", "medium", "high")  # that every template with `reasoning_effort` knows
_OURS = ("messages", "tools", "documents", "add_generation_prompt", "xml_tools", "python_tools")
_DOES_NOT, _LEAVE_OUT = "This model does not reason before it answers.", "Leave it out."
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
        raise ConfigError(_DOES_NOT, hint=_LEAVE_OUT)
    raise ConfigError("This model always reasons as much as it does.", hint=_LEAVE_OUT)


@dataclass(frozen=True, slots=True)
class AskedReasoning:
    """What is asked of the reasoning before an answer.

    Args:
        effort: one of `EFFORTS`; None: as the model has it.
        is_on: whether the model is to reason at all; None: as it has it.
        budget: the most tokens of it; None: any number.
        arguments: further ones of the chat template, by name.
        param, budget_param: of the request, which errors name.
    """

    effort: str | None = None
    is_on: bool | None = None
    budget: int | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    param: str = "reasoning_effort"
    budget_param: str = "thinking_token_budget"

    @property
    def is_off(self) -> bool:
        switched = [self.is_on, *(self.arguments.get(name) for name in _SWITCHES)]
        return self.effort == "none" or False in switched


AS_IT_IS = AskedReasoning()


def template_arguments(chat_template: str, asked: AskedReasoning) -> dict[str, Any]:
    """The arguments of a template that ask for what is asked."""
    effort = asked.effort
    if asked.is_on is not None and effort is None:
        if asked.is_on and find_thinking(chat_template) is None:
            raise ConfigError(_DOES_NOT, hint=_LEAVE_OUT)
        effort = "medium" if asked.is_on else "none"
    arguments = effort_arguments(chat_template, effort)
    for name, value in asked.arguments.items():
        if name in _OURS or name.endswith("_token") or name in arguments:
            raise ConfigError(f"The chat template's {name} is set by the request itself.", hint=_LEAVE_OUT)
        if uses(chat_template, name):
            arguments[name] = value
        elif name not in _SWITCHES or value is not False or find_thinking(chat_template) is not None:
            raise ConfigError(f"The model's chat template knows no {name[:64]!r}.", hint=_LEAVE_OUT)
    return arguments
