"""Constraints as llguidance's grammars, what it refuses in our words, and the form of an answer for whoever drafts it.

Nothing is loosened: a keyword or a number that cannot be enforced is an error that names it. The library computes with
doubles and int64: beyond 2^53 it writes other values, or allows some that the schema does not.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from moa_shared.errors import ConfigError
from moa_shared.sampling.settings import Constraint, ConstraintKind

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

    from moa_shared.constraints.constrained_text import ConstrainedText

_EXACT = 1 << 53  # all integers below are doubles, and so are their neighbours
_LENGTH_END = 1 << 31  # characters or items that no answer has; the library's expressions count up to 2^32
_LEAST_BOUND = 1e-60  # it nests an expression for each zero after the point, up to about 90
_MOST_FACTOR = (1 << 32) - 1  # of `multipleOf`, without its point
_MOST_SHOWN = 40  # characters of a number

_MAPS = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})  # names to schemas
_DATA = frozenset({"default", "examples", "example"})
_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_LEAST_LENGTHS = frozenset({"minLength", "minItems", "minProperties", "minContains"})
_MOST_LENGTHS = frozenset({"maxLength", "maxItems", "maxProperties", "maxContains"})


def with_exact_numbers(schema: Any, name: str) -> Any:
    """A schema that allows the same answers, of numbers that are enforced exactly. `name`: of it, for errors."""
    try:
        return _exact(schema, name, "")
    except RecursionError:
        raise ConfigError(f"The {name} is nested too deeply.", hint="Use definitions.") from None


def _exact(schema: Any, name: str, path: str) -> Any:
    if isinstance(schema, list):
        return [_exact(each, name, f"{path}/{number}") for number, each in enumerate(schema)]
    if not isinstance(schema, dict):
        return schema
    exact = {}
    for key, value in schema.items():
        if key in ("const", "enum"):
            for number in _numbers(value):
                if not abs(number) < _EXACT:
                    raise _refusal(name, key, number, path)
        elif key in _MAPS and isinstance(value, dict):
            value = {each: _exact(value[each], name, f"{path}/{key}/{each}") for each in value}
        elif isinstance(value, int | float) and not isinstance(value, bool):
            if not _is_exact(key, value):
                raise _refusal(name, key, value, path)
            if key in _MOST_LENGTHS and value >= _LENGTH_END:
                continue
        elif key not in _DATA:
            value = _exact(value, name, f"{path}/{key}")
        exact[key] = value
    return exact


def _numbers(value: Any) -> Iterator[int | float]:
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _numbers(each)
    elif isinstance(value, int | float):
        yield value


def _is_exact(key: str, number: int | float) -> bool:
    if isinstance(number, float) and not math.isfinite(number):
        return False
    if key in _BOUNDS:
        return abs(number) < _EXACT and (number == 0 or abs(number) >= _LEAST_BOUND)
    if key == "multipleOf":
        return _is_exact_factor(number)
    return key not in _LEAST_LENGTHS or number < _LENGTH_END


def _is_exact_factor(number: int | float) -> bool:
    """Whether the library, which multiplies a double by ten until it is an integer, gets the right one."""
    if number <= 0:
        return True  # it says what is wrong
    if number > _MOST_FACTOR:
        return False
    factor, places = float(number), 0
    while factor % 1:
        factor, places = factor * 10, places + 1
    return factor <= _MOST_FACTOR and Decimal(factor).scaleb(-places) == Decimal(repr(number))


def _refusal(name: str, key: str, number: int | float, path: str) -> ConfigError:
    shown = repr(number)
    shown = shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}…"
    return ConfigError(
        f"The {name} has {key}: {shown}{f' at #{path}' if path else ''}, a number that cannot be enforced exactly.",
        hint="Leave it out, and check it yourself, or use a string.",
    )


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
    from llguidance import LLMatcher, regex_to_lark

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
    from llguidance import LLMatcher, LLParserLimits

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
    from llguidance import LLMatcher

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


class DraftForm:
    """Follows one answer. `form`: of the answer; how much of it that has read does not matter."""

    def __init__(self, form: ConstrainedText) -> None:
        self._form: ConstrainedText | None = form.copy()

    def after(self, answer: Sequence[int]) -> ConstrainedText | None:
        """The form after the answer's committed tokens, each time more of them; None: they are not of it."""
        form = self._form
        if form is not None:
            try:
                form.advance(answer[form.read :])
            except ConfigError:
                self._form = None
        return self._form
