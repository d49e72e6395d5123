"""Constraints as llguidance's grammars, what it refuses in our words.

Nothing is loosened: a keyword or a number that cannot be enforced is an error that names it. The library computes with
doubles and int64: beyond 2^53 it allows other values than the schema does.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from moa_shared.errors import ConfigError
from moa_shared.sampling.settings import Constraint, ConstraintKind

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_EXACT = 1 << 53  # all integers below are doubles, and so are their neighbours
_MOST_FACTOR = (1 << 32) - 1  # of `multipleOf`, without its point
_MOST_SHOWN = 40  # characters of a number

_MAPS = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})  # names to schemas
_VALUES = frozenset({"const", "enum"})
_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_LENGTHS = frozenset(f"{end}{what}" for end in ("min", "max") for what in ("Length", "Items", "Properties", "Contains"))


def check_numbers(schema: Any, name: str) -> None:
    """Raises ConfigError for a number that cannot be enforced exactly. `name`: of the schema, for errors."""
    try:
        for keyword, number, path in _numbers(schema, "", "#"):
            if not _is_exact(keyword, number):
                shown = repr(number)
                shown = shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}…"
                message = f"The {name} has {shown} at {path}, a number that cannot be enforced exactly."
                raise ConfigError(message, hint="Leave it out, and check it yourself, or use a string.")
    except RecursionError:
        raise ConfigError(f"The {name} is nested too deeply.", hint="Use definitions.") from None


def _numbers(part: Any, keyword: str, path: str) -> Iterator[tuple[str, int | float, str]]:
    if isinstance(part, list):
        for number, each in enumerate(part):
            yield from _numbers(each, keyword, f"{path}/{number}")
    elif isinstance(part, dict):
        for name, each in part.items():
            if keyword in _VALUES or keyword in _MAPS or name not in ("default", "examples", "example"):
                inner = keyword if keyword in _VALUES else "" if keyword in _MAPS else name
                yield from _numbers(each, inner, f"{path}/{name}")
    elif isinstance(part, int | float) and not isinstance(part, bool):
        yield keyword, part, path


def _is_exact(keyword: str, number: int | float) -> bool:
    if isinstance(number, float) and not math.isfinite(number):
        return False
    if keyword in _VALUES or keyword in _BOUNDS:
        # The library nests an expression for each zero after the point, up to about 90.
        return abs(number) < _EXACT and (keyword in _VALUES or number == 0 or abs(number) >= 1e-60)
    if keyword == "multipleOf" and number > 0:  # the library says what is wrong with others
        return number <= _MOST_FACTOR and _is_exact_factor(number)
    return keyword not in _LENGTHS or number < 1 << 31  # its expressions count up to 2^32


def _is_exact_factor(number: int | float) -> bool:
    """Whether the library, which multiplies a double by ten until it is an integer, gets the right one."""
    factor, places = float(number), 0
    while factor % 1:
        factor, places = factor * 10, places + 1
    return factor <= _MOST_FACTOR and Decimal(factor).scaleb(-places) == Decimal(repr(number))


# One way to write JSON, Python's: other white space would let a small model write it for ever, and what stands between
# values needs no forward to be drafted.
JSON_FORM = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# Of a written grammar, rules at work at one place of the text: Python's has 160. The library's 2,000 are for the
# optional properties of schemas, four each, which cost nothing more. An ambiguous grammar has more of them with each
# token, and takes time with their square: 5 ms a token at 300, and 17 ms at 500 (AMD EPYC, one core).
MOST_RULES_AT_WORK = 300
MOST_ERROR = 300  # characters of the library's own words
_PLACE = re.compile(r"^at \d+\(\d+\): |\n *1 \| .*|<non-verbose/>", re.DOTALL)  # where in the library's own form of it
_KNOWN = (  # the library's words, ours, and what to do
    (("oneOf constraints are not",), "has a oneOf whose forms overlap, which cannot be enforced", "Use anyOf."),
    (("NoExtensionBias",), "allows no text at all", "Look for contradictions, and for rules that lead to themselves."),
    (
        ("Too many items", "Current row has"), "leads too far at one place of the answer",
        "Look for definitions that lead only to themselves, or make it less ambiguous.",
    ),
)  # fmt: skip


def compile_grammar(constraint: Constraint, vocabulary: LLTokenizer) -> LLMatcher:
    from llguidance import LLMatcher, LLParserLimits

    most = MOST_RULES_AT_WORK if constraint.kind is ConstraintKind.LARK else None  # None: the library's own
    limits = LLParserLimits(verbose_errors=False, max_items_in_row=most)
    matcher = LLMatcher(vocabulary, _grammar_of(constraint), log_level=0, limits=limits)
    if matcher.is_error():
        raise refusal(constraint.kind, matcher.get_error())
    return matcher


def _grammar_of(constraint: Constraint) -> str:
    from llguidance import LLMatcher, regex_to_lark

    kind, text = constraint.kind, constraint.text
    match kind:
        case ConstraintKind.REGEX:
            return LLMatcher.grammar_from_lark(f"start: /{regex_to_lark(text, 'd')}/")  # \d is 0 to 9
        case ConstraintKind.CHOICE:
            return LLMatcher.grammar_from_regex("|".join(re.escape(each) for each in constraint.choices))
        case ConstraintKind.LARK:
            for place in re.finditer(r"%json\s*(?=\{)", text):
                with suppress(ValueError, RecursionError):  # the library says what is wrong with it
                    schema, _ = json.JSONDecoder().raw_decode(text, place.end())
                    check_numbers(schema, "JSON schema in the Lark grammar")
            return LLMatcher.grammar_from_lark(text)
    schema = json.loads(text) if text else {"type": "object"}
    check_numbers(schema, kind.label)
    try:
        options: Any = JSON_FORM  # of a typed dictionary
        return LLMatcher.grammar_from_json_schema("{}" if schema is True else json.dumps(schema), overrides=options)
    except ValueError as error:
        raise refusal(kind, str(error)) from None


def refusal(kind: ConstraintKind, problem: str) -> ConfigError:
    if found := re.search(r"Unimplemented keys: (\[.*\])", problem):
        problem = f"uses {', '.join(json.loads(found[1]))}, which cannot be enforced"
        return ConfigError(f"The {kind.label} {problem}.", hint="Leave it out, and check it yourself.")
    for signs, words, hint in _KNOWN:
        if any(sign in problem for sign in signs):
            return ConfigError(f"The {kind.label} {words}.", hint=hint)
    words = " ".join(_PLACE.sub("", problem).split()).rstrip(".")
    return ConfigError(f"The {kind.label} cannot be enforced: {words[:MOST_ERROR]}.", hint="Use a simpler one.")
