"""Grammars in llguidance's dialect of Lark: what an answer that calls, or that reasons, is held to. Pure: text only.

Tokens are counted by rules over token ids: llguidance's own `max_tokens` cannot be taken back, which drafts need.
Source: https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from moa_shared.constraints.grammar import JSON_FORM, check_numbers
from moa_shared.errors import ConfigError
from moa_shared.sampling.settings import Constraint, ConstraintKind

from moa_client.tools.thinking import Thinking

# Where tokens are named by id, llguidance 1.9 takes forced ones back wrongly, and drafts are taken back.
_NOT_FORCED = '%llguidance {"no_forcing": true}'


class Grammar:
    """The rules of a grammar, as they are added.

    `special_tokens`: the model's special tokens by text, with their ids: these are never written as text.
    """

    def __init__(self, special_tokens: Mapping[str, int]) -> None:
        self._special_tokens = special_tokens
        self._rules: list[str] = []
        longest_first = sorted(special_tokens, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def rule(self, body: str, options: str = "") -> str:
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}{options}: {body}")
        return name

    def markup(self, text: str) -> str:
        """Terms for this very text, special tokens as tokens; empty for no text."""
        if self._special is None:
            return literal(text)
        terms, end = [], 0
        for found in self._special.finditer(text):
            terms += [literal(text[end : found.start()]), f"<[{self._special_tokens[found[0]]}]>"]
            end = found.end()
        return " ".join(filter(None, [*terms, literal(text[end:])]))

    def json(self, schema: Mapping[str, Any], name: str) -> str:
        """A term for JSON of a schema; `name`: of it, for errors."""
        check_numbers(schema, name)
        return self.rule(f"%json {json.dumps({**schema, 'x-guidance': JSON_FORM}, ensure_ascii=False)}")

    def text_until(self, end: str) -> str:
        """Terms for any text up to and including the first `end`."""
        if end in self._special_tokens:
            return f"{self.rule('/(?s:.*)/')} {self.markup(end)}"
        return self.rule("/(?s:.*)/", f"[suffix={literal(end)}]")

    def choice(self, terms: list[str]) -> str:
        return terms[0] if len(terms) == 1 else self.rule(" | ".join(terms))

    def lark(self, start: str) -> str:
        """The whole grammar; `start`: the terms of a text."""
        written = "\n".join([f"start: {start}", *self._rules])
        return f"{_NOT_FORCED}\n{written}" if "<[" in written else written


def literal(text: str) -> str:
    """This very text in a grammar; empty for none."""
    return json.dumps(text, ensure_ascii=False) if text else ""


@dataclass(frozen=True, slots=True)
class Reasoning:
    """The reasoning of one answer that is constrained.

    Args:
        is_open: the prompt has opened it; otherwise it is for the model to begin with it or not.
        budget: the most tokens of it; None: any number.
        token_id: the id of a mark that is one token; None: it is not.
        ends: ids of tokens that end an answer: reasoning before an answer of a form has none.
    """

    thinking: Thinking
    is_open: bool
    budget: int | None = None
    token_id: Callable[[str], int | None] = lambda mark: None
    ends: frozenset[int] = frozenset()

    def before(self, grammar: Grammar) -> str:
        """Terms for the reasoning before an answer of a form, with what separates them."""
        closing = self.thinking.closings[0]
        body = grammar.text_until(closing) if self.budget is None else self._counted(self.ends)
        after = grammar.markup(self.thinking.next_message) or "/\\n{0,2}/"
        if self.is_open:
            return f"{body} {after}"
        return f"({self._opening(grammar)} {body} {after})?"

    def limited(self, grammar: Grammar) -> str:
        """Terms for any answer whose reasoning has no more tokens than the budget.

        Where reasoning may come anywhere, it comes only once.
        """
        body = self._counted(frozenset())
        if not self.thinking.repeated:
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
        token = self.token_id(opening)
        return grammar.markup(opening) if token is None else f"<[{token}]>"

    def _token(self, mark: str) -> int:
        if (token := self.token_id(mark)) is None:
            words = f"The tokens of this model's reasoning cannot be counted: its tokenizer has no token {mark}."
            raise ConfigError(words, hint="Leave out the budget.")
        return token


def limited_grammar(reasoning: Reasoning, special_tokens: Mapping[str, int]) -> str:
    """The grammar of any answer whose reasoning is limited; `special_tokens`: the model's by text, with their ids."""
    grammar = Grammar(special_tokens)
    return grammar.lark(reasoning.limited(grammar))


def reasoned_grammar(reasoning: Reasoning, form: Constraint, special_tokens: Mapping[str, int]) -> str:
    """The grammar of an answer of a form after reasoning."""
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
            hint = "Use a JSON schema, an expression or a choice, or reasoning_effort: 'none'."
            raise ConfigError("A Lark grammar cannot be enforced after this model's reasoning.", hint=hint)


def _as_lark(expression: str) -> str:
    """A regular expression between slashes; \\d is 0 to 9, as without reasoning before it."""
    escapes = {"/": "\\/", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\\d": "[0-9]"}
    return re.sub(r"\\.|[/\n\r\t]", lambda found: escapes.get(found[0], found[0]), expression, flags=re.DOTALL)
