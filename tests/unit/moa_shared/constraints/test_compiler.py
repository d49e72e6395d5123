"""Constraints as they are compiled, refused, and hold answers; schemas of a public suite."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_shared.constraints.compiler import REFUSAL_SECONDS, TRIAL, TRIAL_SECONDS, ConstraintCompiler
from moa_shared.constraints.constrained_text import ConstrainedText
from moa_shared.constraints.grammar import compile_grammar, refusal
from moa_shared.errors import ConfigError
from moa_shared.models.tokenizer import Tokenizer
from moa_shared.sampling.settings import Constraint, ConstraintKind, choice_of
from moa_shared.sandbox.child import ChildError, text_child
from moa_shared.tree import DraftTree

from tests.support.messages import says
from tests.support.toy_forms import END, begin, byte_vocabulary

ROWS = 49_160  # eight more than the tokenizer has tokens
NO_TREE = DraftTree((), ())


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> ConstraintCompiler:
    return ConstraintCompiler(tokenizer, ROWS, [0, 2])


def test_answers_end_with_each_end_of_text(compiler: ConstraintCompiler, tokenizer: Tokenizer) -> None:
    answer = compiler.begin(choice_of(["red", "blue"]))
    answer.advance(tokenizer.encode("blue"))
    allowed = answer.allowed(NO_TREE)
    assert allowed.shape == (1, ROWS)
    assert set(np.flatnonzero(allowed[0])) == {0, 2}


def test_two_answers_under_one_constraint_are_apart(compiler: ConstraintCompiler, tokenizer: Tokenizer) -> None:
    constraint = choice_of(["red", "green"])
    assert compiler.known(constraint) is None
    first, second = compiler.begin(constraint), compiler.known(constraint)
    assert second is not None
    first.advance(tokenizer.encode("red"))
    assert second.read == 0
    assert not np.array_equal(first.allowed(NO_TREE), second.allowed(NO_TREE))


def test_a_schema_that_takes_too_long_is_refused(compiler: ConstraintCompiler) -> None:
    schema = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(8000)}}
    with pytest.raises(ConfigError, match="The JSON schema cannot be enforced: it takes more than"):
        compiler.begin(Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(schema)))


def test_what_was_refused_is_refused_again_without_a_child_for_a_while(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, tried = [0.0], list[str]()

    class Child:
        def ask(self, function: str, *, kind: int, text: str) -> None:
            tried.append(text)
            raise ConfigError("It is refused.", hint="Leave it out.")

    monkeypatch.setattr("moa_shared.constraints.compiler.text_child", lambda seconds: Child())
    monkeypatch.setattr("moa_shared.constraints.compiler.KEPT", 2)
    compiler = ConstraintCompiler(tokenizer, ROWS, [0], clock=lambda: now[0])

    def ask(name: str) -> None:
        with pytest.raises(ConfigError, match=r"It is refused\. Leave it out\."):
            compiler.begin(choice_of([name]))

    for name in ("a", "a", "b", "a"):
        ask(name)
    assert tried == ['["a"]', '["b"]']
    ask("c")  # one too many to remember
    ask("b")
    assert tried == ['["a"]', '["b"]', '["c"]', '["b"]']
    now[0] = REFUSAL_SECONDS + 1
    ask("b")
    assert len(tried) == 5


SCHEMA, REGEX, LARK = ConstraintKind.JSON_SCHEMA, ConstraintKind.REGEX, ConstraintKind.LARK


@pytest.mark.parametrize(("kind", "text", "message"), [
    (SCHEMA, '{"not": {"type": "string"}}', "uses not, which cannot be enforced"),
    (SCHEMA, '{"type": "array", "uniqueItems": true}', "uses uniqueItems, which cannot be enforced"),
    (SCHEMA, '{"$ref": "http://example.com/x"}', "cannot be enforced: Resource 'http://example.com/x' is"),
    (SCHEMA, '{"oneOf": [{"type": "object"}, {"type": "object", "properties": {}}]}', "has a oneOf whose forms"),
    (
        SCHEMA,
        '{"type": "object", "properties": {"minimum": {"minimum": -9223372036854775808, "type": "integer"}}}',
        "has -9223372036854775808 at #/properties/minimum/minimum, a number that cannot be",
    ),
    (SCHEMA, '{"multipleOf": 9007199254740993}', "has 9007199254740993 at #/multipleOf, a number that cannot be"),
    (SCHEMA, '{"maximum": Infinity}', "has inf at #/maximum, a number that cannot be enforced exactly"),
    (SCHEMA, json.dumps({"minLength": 10**50}), f"has 1{'0' * 39}… at #/minLength, a"),
    (SCHEMA, '{"maxLength": 9007199254740993}', "has 9007199254740993 at #/maxLength, a"),
    (REGEX, "a(", 'cannot be enforced: invalid regex "a(" (in regex):'),
    (LARK, "start: nothing", 'cannot be enforced: unknown name: "nothing"'),
    (
        LARK,
        'start: %json {"a": 1} | %json {"const": 9007199254740993}',
        "has 9007199254740993 at #/const, a number",
    ),
])  # fmt: skip
def test_what_cannot_be_enforced_is_refused(kind: ConstraintKind, text: str, message: str) -> None:
    with says(ConfigError, message) as refused:
        compile_grammar(Constraint(kind, text), byte_vocabulary())
    assert refused.value.message.startswith(("The JSON schema ", "The regular expression ", "The Lark grammar "))


EDGES = [0, 2**31, 2**53, 10**17, 10**18, 2**62, 2**63 - 1024, 2**63, 2**64, 10**19, 10**23]
KEYWORDS = ["const", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]


@given(
    st.sampled_from(KEYWORDS),
    st.sampled_from([{}, {"type": "integer"}, {"type": "number"}]),
    st.sampled_from(EDGES),
    st.integers(-3, 3),
    st.booleans(),
)
def test_a_number_is_enforced_exactly_or_refused(
    keyword: str, kind: dict[str, str], edge: int, off: int, is_negative: bool
) -> None:
    number = -(edge + off) if is_negative else edge + off
    schema = {**kind, keyword: [number] if keyword == "enum" else number}
    allows = {
        "minimum": number.__le__, "maximum": number.__ge__,
        "exclusiveMinimum": number.__lt__, "exclusiveMaximum": number.__gt__,
    }.get(keyword, number.__eq__)  # fmt: skip
    try:
        matcher = compile_grammar(Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(schema)), byte_vocabulary())
    except ConfigError as refusal:
        if abs(number) < 2**53 or f"has {number} at #/{keyword}" not in refusal.message:
            raise
        return
    for value in range(number - 2, number + 3):
        text = str(value).encode()
        form = matcher.deep_copy()
        assert (form.try_consume_tokens(list(text)) == len(text) and form.is_accepting()) is allows(value), value


# By keyword: a schema, values that are valid, and values that are not. Without schemas of other servers and those of
# keywords that are refused (`unevaluated...`, `$dynamic...`).
SUITE: dict[str, list[tuple[Any, list[Any], list[Any]]]] = json.loads(
    (Path(__file__).parent / "json_schema_suite.json").read_text()
)
REFUSED = (
    "uses ",
    "cannot be enforced: ",
    "cannot be enforced exactly",
    "has a oneOf whose forms overlap",
    "allows no text at all",
)


def holds(form: ConstrainedText, value: Any) -> bool:
    """Whether a value is a whole answer."""
    text = form.copy()
    try:
        text.advance(list(json.dumps(value, ensure_ascii=False).encode()))
    except ConfigError:
        return False
    return bool(text.allowed(NO_TREE)[0][END])


@pytest.mark.parametrize("keyword", SUITE)
def test_no_schema_of_the_public_suite_is_loosened(keyword: str) -> None:
    for schema, valid, invalid in SUITE[keyword]:
        try:
            form = begin(Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(schema)))
        except ConfigError as refusal:
            if not any(words in refusal.message for words in REFUSED):
                pytest.fail(refusal.message)
            continue
        assert not [value for value in invalid if holds(form, value)], schema
        # Formats are enforced here, and keys come in the schema's order, numbers without an empty fraction.
        if keyword not in ("format", "vocabulary"):
            assert not [value for value in valid if not holds(form, _tidy(value, schema))], schema


def _tidy(value: Any, schema: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_tidy(each, schema) for each in value]
    if isinstance(value, dict):
        text = json.dumps(schema)
        return {
            key: _tidy(value[key], schema) for key in sorted(value, key=lambda key: text.find(f'"{key}"') % (1 << 30))
        }
    return value


@pytest.mark.parametrize(("kind", "text", "message"), [
    (SCHEMA, json.dumps({"enum": ["x" * 1000] * 1000}), "The JSON schema has 1,004,010 bytes, at most 262,144 are"),
    (SCHEMA, '{"items":' * 900 + "{}" + "}" * 900, "The JSON schema cannot be enforced: recursion limit exceeded"),
    (SCHEMA, '{"$ref": "#"}', "The JSON schema allows no text at all"),
    (SCHEMA, '{"allOf": [{"type": "string"}, {"type": "integer"}]}', "Unsatisfiable schema: incompatible types"),
    (SCHEMA, '{"type": "string", "minLength": 5, "maxLength": 3}', "Unsatisfiable schema: minLength (5) is"),
    (LARK, "start: start", "The Lark grammar allows no text at all"),
    (LARK, "start: A\nA: /a/ & /b/", "The Lark grammar allows no text at all"),
], ids=["a megabyte", "900 levels", "itself", "no type", "no length", "no end", "nothing"])  # fmt: skip
def test_what_no_answer_can_be_is_refused_before_the_first_token(kind: ConstraintKind, text: str, message: str) -> None:
    with says(ConfigError, message):
        constraint = Constraint(kind, text)
        try:
            text_child(TRIAL_SECONDS).ask(TRIAL, kind=constraint.kind.value, text=constraint.text)
        except ChildError as error:
            raise refusal(kind, str(error)) from None


def written(form: ConstrainedText, letters: Sequence[int], most: int) -> None:
    """An answer of these letters, again and again."""
    for number in range(most):
        form.allowed(NO_TREE)
        form.advance([letters[number % len(letters)]])


@pytest.mark.parametrize(("kind", "text", "letters", "message"), [
    (
        ConstraintKind.JSON_SCHEMA,
        '{"properties": {"a": {"$ref": "#"}}, "type": "object", "required": ["a"], "additionalProperties": false}',
        b'{"a": ',
        "The JSON schema leads too far at one place of the answer",
    ),
    (ConstraintKind.REGEX, "(a{1,1000}){1,1000}", b"a", "The regular expression cannot be enforced: lexer"),
    (ConstraintKind.LARK, 'start: e\ne: "a" | e e | e e e', b"a", "The Lark grammar leads too far at one place"),
])  # fmt: skip
def test_what_explodes_in_the_answer_ends_it_in_words(
    kind: ConstraintKind, text: str, letters: bytes, message: str
) -> None:
    with says(ConfigError, message):
        written(begin(Constraint(kind, text)), letters, 500)


@pytest.mark.parametrize("text", ["(a|b)*a(a|b){40}", "(x+x+)+y", "(.*a){1000}"])
def test_expressions_that_explode_elsewhere_do_not_here(text: str) -> None:
    form = begin(Constraint(ConstraintKind.REGEX, text))
    letter = int(np.flatnonzero(form.allowed(NO_TREE)[0])[0])
    written(form, [letter], 200)
