"""How the model that a device knows marks reasoning, and the text of its answers with these marks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from jinja2 import TemplateError
from moa_shared.errors import ConfigError
from moa_shared.sampling.settings import Constraint, ConstraintKind

from moa_client.tools.grammars import Reasoning, limited_grammar
from moa_client.tools.thinking import EFFORTS, ReasoningMarks, Thinking, effort_arguments, find_thinking, have_any

if TYPE_CHECKING:
    from moa_shared.models.tokenizer.tokenizer import Tokenizer

    from moa_client.conversation.options import AnswerOptions
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
    return device.spelled if have_any(marks.all, device.tokenizer.special_tokens) else device.decode


def reasoned(device: Device, options: AnswerOptions) -> AnswerOptions:
    tokenizer, effort = device.tokenizer, options.reasoning_effort
    template = tokenizer.chat_template or ""
    effort_arguments(template, effort)
    thinking, marks = find_thinking(template), reasoning_marks(tokenizer)
    if options.thinking_budget is None or thinking is None or marks is None:
        return options
    is_open = (effort or "") in marks.opened
    if effort == "none" and not is_open:
        return options  # there is none
    reasoning = Reasoning(thinking, is_open, options.thinking_budget, tokenizer.token_id)
    grammar = limited_grammar(reasoning, tokenizer.special_tokens)
    return replace(options, constraint=Constraint(ConstraintKind.LARK, grammar))


def _is_open(tokenizer: Tokenizer, thinking: Thinking, effort: str) -> bool | None:
    """Whether the prompt opens reasoning with this effort; None: it cannot be asked for."""
    try:
        arguments = effort_arguments(tokenizer.chat_template or "", effort or None)
        return thinking.is_open(tokenizer.apply_chat_template(_ASKED, add_generation_prompt=True, arguments=arguments))
    except (ConfigError, TemplateError):
        return None
