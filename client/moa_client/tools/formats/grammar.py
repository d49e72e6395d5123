"""Builds grammars in llguidance's dialect of Lark. Pure: text only.

Source: https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from moa_shared.constraints.numbers import with_exact_numbers

# One way to write JSON, as in answers that a schema constrains.
_JSON_FORM = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

# Where tokens are named by id, llguidance 1.9 takes forced ones back wrongly, and drafts are taken back.
_NOT_FORCED = '%llguidance {"no_forcing": true}'


class Grammar:
    """The rules of a grammar, as they are added.

    Args:
        special_tokens: the model's special tokens by text, with their ids: these are never written as text.
    """

    def __init__(self, special_tokens: Mapping[str, int]) -> None:
        self._special_tokens = special_tokens
        self._rules: list[str] = []
        longest_first = sorted(special_tokens, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def rule(self, body: str, options: str = "") -> str:
        """Adds a rule; its name."""
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
        """A term for JSON of a schema.

        Args:
            name: of the schema, for errors.

        Raises:
            ConfigError: a number in it cannot be enforced.
        """
        exact = with_exact_numbers(dict(schema), name)
        return self.rule(f"%json {json.dumps({**exact, 'x-guidance': _JSON_FORM}, ensure_ascii=False)}")

    def text_until(self, end: str) -> str:
        """Terms for any text up to and including the first `end`."""
        if end in self._special_tokens:
            return f"{self.rule('/(?s:.*)/')} {self.markup(end)}"
        return self.rule("/(?s:.*)/", f"[suffix={literal(end)}]")

    def choice(self, terms: list[str]) -> str:
        """A term for one of these."""
        return terms[0] if len(terms) == 1 else self.rule(" | ".join(terms))

    def lark(self, start: str) -> str:
        """The whole grammar.

        Args:
            start: the terms of a text.
        """
        written = "\n".join([f"start: {start}", *self._rules])
        return f"{_NOT_FORCED}\n{written}" if "<[" in written else written


def literal(text: str) -> str:
    """This very text in a grammar; empty for none."""
    return json.dumps(text, ensure_ascii=False) if text else ""
