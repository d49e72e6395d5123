"""A chat as the model gets it: its tokens, the form of the answer, and how that is marked. Pure over the model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from moa_shared.errors import ModelSourceError
from moa_shared.sampling.constraint import Constraint, ConstraintKind

from moa_client.endpoint.answer_parts import AnswerMarkup
from moa_client.endpoint.answer_source import ServedModel
from moa_client.endpoint.asked import Prompt
from moa_client.endpoint.fields import refusing
from moa_client.tools.forced import forced_grammar
from moa_client.tools.formats.families import find_format
from moa_client.tools.offer import ToolOffer
from moa_client.tools.template_input import ChatMessage, template_input
from moa_client.tools.thinking import find_thinking
from moa_client.tools.tool import ToolResult
from moa_client.web.error_form import request_error

END = 32  # tokens: enough to hold what opens reasoning


def chat_prompt(
    messages: Sequence[ChatMessage | ToolResult],
    offer: ToolOffer,
    model: ServedModel,
    *,
    form: Constraint | None = None,
) -> Prompt:
    """The prompt of a chat.

    Args:
        form: JSON that an answer must be which calls no tool; None: any text.

    Raises:
        RequestError: the model's chat template refuses it, or a call that it requires cannot be enforced.
    """
    calls = find_format(model.chat_template)
    given = template_input(calls, model.chat_template, messages, offer.tools)
    try:
        tokens = model.render(given)
    except ModelSourceError as error:
        raise request_error(error, param="messages") from None
    if not offer.tools:
        return Prompt(tokens)
    thinking = find_thinking(model.chat_template)
    is_thinking = thinking is not None and thinking.is_open(model.spelled(tokens[-END:]))
    markup = AnswerMarkup(calls, offer, thinking, is_thinking)
    if not offer.is_forced and form is None:
        return Prompt(tokens, markup)
    with refusing("tools"):
        grammar = forced_grammar(
            calls,
            offer.tools,
            model.special_tokens,
            is_parallel=offer.is_parallel,
            reasoning_end=thinking.closings[0] if thinking is not None and is_thinking else "",
            otherwise=None if form is None or offer.is_forced else _schema(form),
        )
        return Prompt(tokens, markup, Constraint(ConstraintKind.LARK, grammar))


def _schema(form: Constraint) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(form.text) if form.text else {"type": "object"}
    return schema
