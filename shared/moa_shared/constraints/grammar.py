"""Constraints as llguidance's grammars, and what it refuses in our words.

Nothing is loosened: a keyword that cannot be enforced is an error that names it.
"""

from __future__ import annotations

import json
import re
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, regex_to_lark

from moa_shared.constraints.numbers import with_exact_numbers
from moa_shared.errors import ConfigError
from moa_shared.sampling.settings import Constraint, ConstraintKind

# One way to write JSON, Python's: other white space would let a small model write it for ever, and what stands between
# values needs no forward to be drafted.
JSON_FORM = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# Of a written grammar, rules at work at one place of the text: Python's has 160. The library's 2,000 are for the
# optional properties of schemas, four each, which cost nothing more. An ambiguous grammar has more of them with each
# token, and takes time with their square: 5 ms a token at 300, and 17 ms at 500 (AMD EPYC, one core).
MOST_RULES_AT_WORK = 300
MOST_ERROR = 300  # characters of the library's own words
_PLACE = re.compile(r"^at \d+\(\d+\): |\n *1 \| .*|<non-verbose/>", re.DOTALL)  # where in the library's own form of it
_SCHEMA_BEGIN = re.compile(r"(%json\s*)(?=\{)")
_UNIMPLEMENTED = re.compile(r"Unimplemented keys: (\[.*\])")


def grammar_of(constraint: Constraint) -> str:
    match constraint.kind:
        case ConstraintKind.JSON_SCHEMA:
            return _schema(constraint.text)
        case ConstraintKind.JSON_OBJECT:
            return _schema('{"type": "object"}')
        case ConstraintKind.REGEX:
            return LLMatcher.grammar_from_lark(f"start: /{regex_to_lark(constraint.text, 'd')}/")  # \d is 0 to 9
        case ConstraintKind.CHOICE:
            return LLMatcher.grammar_from_regex("|".join(re.escape(each) for each in constraint.choices))
        case ConstraintKind.LARK:
            return LLMatcher.grammar_from_lark(_with_exact_schemas(constraint.text))


def compile_grammar(constraint: Constraint, vocabulary: LLTokenizer) -> LLMatcher:
    most = MOST_RULES_AT_WORK if constraint.kind is ConstraintKind.LARK else None  # None: the library's own
    limits = LLParserLimits(verbose_errors=False, max_items_in_row=most)
    matcher = LLMatcher(vocabulary, grammar_of(constraint), log_level=0, limits=limits)
    if matcher.is_error():
        raise refusal(constraint.kind, matcher.get_error())
    return matcher


def refusal(kind: ConstraintKind, problem: str) -> ConfigError:
    if found := _UNIMPLEMENTED.search(problem):
        names = ", ".join(json.loads(found[1]))
        return ConfigError(
            f"The {kind.label} uses {names}, which cannot be enforced.", hint="Leave it out, and check it yourself."
        )
    if "oneOf constraints are not supported" in problem:
        return ConfigError(
            f"The {kind.label} has a oneOf whose forms overlap, which cannot be enforced.", hint="Use anyOf."
        )
    if "NoExtensionBias" in problem:
        hint = "Look for contradictions, and for definitions that lead only to themselves."
        return ConfigError(f"The {kind.label} allows no text at all.", hint=hint)
    if "Too many items" in problem or "Current row has" in problem:
        hint = "Look for definitions that lead only to themselves, or make it less ambiguous."
        return ConfigError(f"The {kind.label} leads too far at one place of the answer.", hint=hint)
    words = " ".join(_PLACE.sub("", problem).split()).rstrip(".")
    return ConfigError(f"The {kind.label} cannot be enforced: {words[:MOST_ERROR]}.", hint="Use a simpler one.")


def _schema(text: str) -> str:
    options: Any = JSON_FORM  # of a typed dictionary
    schema = json.loads(text)
    exact = {} if schema is True else with_exact_numbers(schema, ConstraintKind.JSON_SCHEMA.label)
    text = text if exact == schema else json.dumps(exact)
    try:
        return LLMatcher.grammar_from_json_schema(text, overrides=options)
    except ValueError as error:
        raise refusal(ConstraintKind.JSON_SCHEMA, str(error)) from None


def _with_exact_schemas(lark: str) -> str:
    before, *parts = _SCHEMA_BEGIN.split(lark)
    written = [before]
    for mark, part in zip(parts[::2], parts[1::2], strict=True):
        try:
            schema, end = json.JSONDecoder().raw_decode(part)
        except (ValueError, RecursionError):
            written += [mark, part]  # the library says what is wrong with it
            continue
        exact = with_exact_numbers(schema, "JSON schema in the Lark grammar")
        written += [mark, json.dumps(exact, ensure_ascii=False), part[end:]]
    return "".join(written)
