"""What a request for more or less reasoning is to a chat template. Pure.

Templates differ: gpt-oss' has `reasoning_effort`, Qwen's `enable_thinking`, DeepSeek's and Granite's `thinking`.
"""

from __future__ import annotations

import re
from typing import Any

from moa_shared.errors import ConfigError

from moa_client.tools.thinking import find_thinking

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")  # OpenAI's
_GRADES = ("low", "medium", "high")  # that every template with `reasoning_effort` knows
_EFFORT, _SWITCHES = "reasoning_effort", ("enable_thinking", "thinking")


def uses(chat_template: str, name: str) -> bool:
    """Whether a template's code, rather than its text, uses a variable."""
    return re.search(r"\{[%{][^%}]*(?<![.\w'\"])" + re.escape(name) + r"(?![\w'\"])", chat_template) is not None


def effort_arguments(chat_template: str, effort: str | None) -> dict[str, Any]:
    """The arguments of a template that ask for an effort.

    Args:
        effort: one of `EFFORTS`; None: as the model has it.

    Raises:
        ConfigError: the template cannot ask for it.
    """
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
