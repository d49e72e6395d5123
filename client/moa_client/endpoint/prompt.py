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
from moa_client.tools.effort import AS_IT_IS, AskedReasoning, template_arguments
from moa_client.tools.forced import forced_grammar
from moa_client.tools.formats.base import ToolFormat
from moa_client.tools.formats.families import find_format
from moa_client.tools.formats.harmony import Harmony
from moa_client.tools.offer import ToolOffer
from moa_client.tools.reasoned import Reasoning, limited_grammar, reasoned_grammar
from moa_client.tools.template_input import ChatMessage, template_input
from moa_client.tools.thinking import find_thinking
from moa_client.tools.tool import ToolResult
from moa_client.web.error_form import request_error

END = 32  # tokens: enough to hold what opens reasoning


def chat_prompt(
    messages: Sequence[ChatMessage | ToolResult],
    offer: ToolOffer,
    model: ServedModel,
    asked: AskedReasoning = AS_IT_IS,
    form: Constraint | None = None,
) -> Prompt:
    """The prompt of a chat.

    Args:
        asked: of the reasoning before the answer.
        form: that the answer must have after its reasoning, where it calls no tool; None: any, or what the offer says.

    Raises:
        RequestError: the model's chat template refuses it, or what it requires of the answer cannot be enforced.
    """
    if offer.tools:
        model = model.with_tools()
    template = model.chat_template
    calls = find_format(template)
    given = template_input(calls, template, messages, offer.tools)
    with refusing(asked.param):
        given.arguments.update(template_arguments(template, asked))
    try:
        tokens = model.render(given)
    except ModelSourceError as error:
        raise request_error(error, param="messages") from None
    reasoning = _reasoning(tokens, model, asked)
    has_calls = bool(offer.tools) or isinstance(calls, Harmony)  # which has all of an answer in messages
    markup = None
    if has_calls or reasoning is not None:
        thinking, is_open = (None, False) if reasoning is None else (reasoning.thinking, reasoning.is_open)
        markup = AnswerMarkup(calls if has_calls else None, offer, thinking, is_open)
    if reasoning is not None and asked.is_off and not reasoning.is_open:
        reasoning = None  # the prompt has closed it
    with refusing(asked.budget_param):
        return Prompt(tokens, markup, _constraint(calls, offer, model, reasoning, form))


def _reasoning(tokens: Sequence[int], model: ServedModel, asked: AskedReasoning) -> Reasoning | None:
    """The reasoning that an answer to this prompt may have; None: the model is not known to have any."""
    thinking = find_thinking(model.chat_template)
    if thinking is None:
        return None
    is_open = thinking.is_open(model.spelled(tokens[-END:]))
    ends = frozenset(model.end_of_text)
    return Reasoning.of(thinking, model.token_id, is_open=is_open, budget=asked.budget, ends=ends)


def _constraint(
    calls: ToolFormat, offer: ToolOffer, model: ServedModel, reasoning: Reasoning | None, form: Constraint | None
) -> Constraint | None:
    """What the answer is held to; None: nothing."""
    if offer.is_forced or (offer.tools and form is not None):
        with refusing("tools"):
            grammar = forced_grammar(
                calls,
                offer.tools,
                model.special_tokens,
                is_parallel=offer.is_parallel,
                reasoning=reasoning,
                otherwise=None if form is None or offer.is_forced else _schema(form),
            )
    elif form is not None:
        if reasoning is None or (form.kind is ConstraintKind.LARK and not reasoning.is_open):
            return form
        with refusing("response_format"):
            grammar = reasoned_grammar(reasoning, form, model.special_tokens)
    elif reasoning is not None and reasoning.budget is not None:
        grammar = limited_grammar(reasoning, model.special_tokens)
    else:
        return None
    return Constraint(ConstraintKind.LARK, grammar)


def _schema(form: Constraint) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(form.text) if form.text else {"type": "object"}
    return schema
