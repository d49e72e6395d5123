"""Grammars of answers that must be calls, or calls or else JSON of a schema. Pure: text only.

The text is a constraint of the kind LARK; whether it can be enforced is known once it is compiled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from moa_client.tools.formats.base import ToolFormat
from moa_client.tools.formats.grammar import Grammar
from moa_client.tools.reasoned import Reasoning
from moa_client.tools.tool import Tool


def forced_grammar(
    form: ToolFormat,
    tools: Sequence[Tool],
    special_tokens: Mapping[str, int],
    *,
    is_parallel: bool = False,
    reasoning: Reasoning | None = None,
    otherwise: Mapping[str, Any] | None = None,
) -> str:
    """The grammar of an answer that calls one of these tools, with arguments of its schema.

    Args:
        tools: at least one: those that `ToolChoice.of` gives.
        special_tokens: the model's special tokens by text, with their ids.
        is_parallel: several calls are allowed, where the form knows several.
        reasoning: that may come first; None: none.
        otherwise: the schema of an answer without a call; None: it must call.

    Raises:
        ConfigError: a schema cannot be enforced in this form, or the tokens of reasoning cannot be counted.
    """
    grammar = Grammar(special_tokens)
    call = grammar.choice([form.call_grammar(tool, grammar) for tool in tools])
    before, between, after = (grammar.markup(text) for text in form.around)
    calls = grammar.rule(f"{call} ({between} {call})*" if is_parallel and form.is_parallel else call)
    thought = reasoning.before(grammar) if reasoning is not None else ""
    answer = " ".join(filter(None, [before, calls, after]))
    if otherwise is not None:
        answer = grammar.choice([answer, grammar.json(otherwise, "JSON schema")])
    return grammar.lark(" ".join(filter(None, [thought, answer])))
