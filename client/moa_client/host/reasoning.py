"""How the model that a device knows marks reasoning, and the text of its answers with these marks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from jinja2 import TemplateError
from moa_shared.errors import ConfigError

from moa_client.tools.answer_split import ReasoningMarks
from moa_client.tools.effort import EFFORTS, effort_arguments
from moa_client.tools.thinking import Thinking, find_thinking

if TYPE_CHECKING:
    from moa_shared.models.tokenizer.tokenizer import Tokenizer

    from moa_client.device.loading import Device

_ASKED = [{"role": "user", "content": "?"}]


@lru_cache(maxsize=4)
def reasoning_marks(tokenizer: Tokenizer) -> ReasoningMarks | None:
    """How answers mark reasoning; None: they have none that is known."""
    thinking = find_thinking(tokenizer.chat_template or "")
    if thinking is None:
        return None
    opened = {effort: _is_open(tokenizer, thinking, effort) for effort in ("", *EFFORTS)}
    return ReasoningMarks(
        thinking.openings,
        thinking.closings,
        thinking.is_repeated,
        thinking.others,
        tuple(effort for effort, is_open in opened.items() if is_open),
        tuple(effort for effort in EFFORTS if opened[effort] is not None),
    )


def answer_decode(device: Device) -> Callable[[Sequence[int]], str]:
    """What decodes the tokens of answers: with special tokens where these mark reasoning, else without any."""
    marks = reasoning_marks(device.tokenizer)
    if marks is None:
        return device.decode
    has_special = any(token in mark for token in device.tokenizer.special_tokens for mark in marks.all)
    return device.spelled if has_special else device.decode


def _is_open(tokenizer: Tokenizer, thinking: Thinking, effort: str) -> bool | None:
    """Whether the prompt opens reasoning with this effort; None: it cannot be asked for."""
    try:
        arguments = effort_arguments(tokenizer.chat_template or "", effort or None)
        return thinking.is_open(tokenizer.apply_chat_template(_ASKED, add_generation_prompt=True, arguments=arguments))
    except (ConfigError, TemplateError):
        return None
