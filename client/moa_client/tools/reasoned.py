"""Grammars of answers that begin with reasoning: how many tokens it may have, and the form of what comes after it.

Tokens are counted by rules over token ids: llguidance's own `max_tokens` cannot be taken back, which drafts need.
Pure: text only; whether it can be enforced is known once it is compiled.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from moa_shared.errors import ConfigError
from moa_shared.sampling.constraint import Constraint, ConstraintKind

from moa_client.tools.formats.grammar import Grammar, literal
from moa_client.tools.thinking import Thinking

_ESCAPES = {"/": "\\/", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


@dataclass(frozen=True, slots=True)
class Reasoning:
    """The reasoning of one answer that is constrained.

    Args:
        is_open: the prompt has opened it; otherwise it is for the model to begin with it or not.
        budget: the most tokens of it; None: any number.
        tokens: the ids of marks that are one token.
        ends: ids of tokens that end an answer: reasoning before an answer of a form has none.
    """

    thinking: Thinking
    is_open: bool
    budget: int | None = None
    tokens: Mapping[str, int] = field(default_factory=dict)
    ends: frozenset[int] = frozenset()

    @classmethod
    def of(
        cls,
        thinking: Thinking,
        token_id: Callable[[str], int | None],
        *,
        is_open: bool,
        budget: int | None,
        ends: frozenset[int] = frozenset(),
    ) -> Reasoning:
        """The reasoning of an answer of a model.

        Args:
            token_id: the model's token that is spelled so; None: there is none.
        """
        tokens = {mark: number for mark in thinking.marks if (number := token_id(mark)) is not None}
        return cls(thinking, is_open, budget, tokens, ends)

    def before(self, grammar: Grammar) -> str:
        """Terms for the reasoning before an answer of a form, with what separates them.

        Raises:
            ConfigError: its tokens cannot be counted.
        """
        closing = self.thinking.closings[0]
        body = grammar.text_until(closing) if self.budget is None else self._counted(self.ends)
        after = grammar.markup(self.thinking.next_message) or "/\\n{0,2}/"
        if self.is_open:
            return f"{body} {after}"
        return f"({self._opening(grammar)} {body} {after})?"

    def limited(self, grammar: Grammar) -> str:
        """Terms for any answer whose reasoning has no more tokens than the budget.

        Where reasoning may come anywhere, it comes only once.

        Raises:
            ConfigError: its tokens cannot be counted.
        """
        body = self._counted(frozenset())
        if not self.thinking.is_repeated:
            rest = "<[*]>*"
            if self.is_open:
                return f"{body} {rest}"
            first = self._token(self.thinking.openings[0])
            return f"<[{first}]> {body} {rest} | (<[^{first}]> {rest})?"
        first = self._token(self.thinking.first_mark)
        rest = f"<[^{first}]>*"
        if self.thinking.channels:
            rest += f" (<[{first}]> /{'|'.join(self.thinking.channels)}/ <[^{first}]>*)*"
        return f"{body} {rest}" if self.is_open else f"({self._opening(grammar)} {body})? {rest}"

    def _counted(self, ends: frozenset[int]) -> str:
        """Terms for at most so many tokens, and what closes them."""
        closing = self._token(self.thinking.closings[0])
        if not self.budget:
            return f"<[{closing}]>"
        others = ",".join(map(str, sorted({closing, *ends})))
        return f"<[^{others}]>{{0,{self.budget}}} <[{closing}]>"

    def _opening(self, grammar: Grammar) -> str:
        opening = self.thinking.openings[0]
        return f"<[{self.tokens[opening]}]>" if opening in self.tokens else grammar.markup(opening)

    def _token(self, mark: str) -> int:
        if mark not in self.tokens:
            raise ConfigError(
                f"The tokens of this model's reasoning cannot be counted: its tokenizer has no token {mark}.",
                hint="Leave out the budget.",
            )
        return self.tokens[mark]


def limited_grammar(reasoning: Reasoning, special_tokens: Mapping[str, int]) -> str:
    """The grammar of any answer whose reasoning is limited.

    Args:
        special_tokens: the model's special tokens by text, with their ids.

    Raises:
        ConfigError: the tokens of reasoning cannot be counted.
    """
    grammar = Grammar(special_tokens)
    return grammar.lark(reasoning.limited(grammar))


def reasoned_grammar(reasoning: Reasoning, form: Constraint, special_tokens: Mapping[str, int]) -> str:
    """The grammar of an answer of a form after reasoning.

    Args:
        special_tokens: as above.

    Raises:
        ConfigError: the form cannot be enforced after reasoning.
    """
    grammar = Grammar(special_tokens)
    answer = f"{grammar.markup(reasoning.thinking.answer)} {_terms(form, grammar)}".strip()
    return grammar.lark(f"{reasoning.before(grammar)} {answer}")


def _terms(form: Constraint, grammar: Grammar) -> str:
    match form.kind:
        case ConstraintKind.JSON_SCHEMA:
            schema = json.loads(form.text)
            if schema is False:
                raise ConfigError("The JSON schema allows nothing.")
            return grammar.json({} if schema is True else schema, form.kind.label)
        case ConstraintKind.JSON_OBJECT:
            return grammar.json({"type": "object"}, form.kind.label)
        case ConstraintKind.REGEX:
            return grammar.rule(f"/{_as_lark(form.text)}/")
        case ConstraintKind.CHOICE:
            return grammar.choice([literal(text) for text in form.choices])
        case ConstraintKind.LARK:
            raise ConfigError(
                "A Lark grammar cannot be enforced after this model's reasoning.",
                hint="Use a JSON schema, an expression or a choice, or reasoning_effort: 'none'.",
            )


def _as_lark(expression: str) -> str:
    """A regular expression between slashes; \\d is 0 to 9, as without reasoning before it."""
    written, is_escaped = "", False
    for char in expression:
        if is_escaped:
            written += "[0-9]" if char == "d" else f"\\{char}"
            is_escaped = False
        elif char == "\\":
            is_escaped = True
        else:
            written += _ESCAPES.get(char, char)
    return written + "\\" * is_escaped
