import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_shared.constraints.constrained_text import MOST_SECONDS, MOST_UNREAD, ConstrainedText
from moa_shared.constraints.grammar import compile_grammar
from moa_shared.errors import ConfigError
from moa_shared.sampling.settings import Constraint, ConstraintKind, choice_of
from moa_shared.tree import DraftTree

from tests.support.messages import says
from tests.support.toy_forms import END, TOKENS, begin, byte_vocabulary, text_of

SCHEMA = Constraint(
    ConstraintKind.JSON_SCHEMA,
    json.dumps(
        {
            "type": "object",
            "properties": {"ab": {"type": "integer"}, "ok": {"type": "boolean"}},
            "required": ["ab", "ok"],
            "additionalProperties": False,
        }
    ),
)
NO_TREE = DraftTree((), ())


def constrained(constraint: Constraint = SCHEMA) -> ConstrainedText:
    return begin(constraint)


def tokens_of(text: str) -> list[int]:
    return list(text.encode())


def after(text: str, constraint: Constraint = SCHEMA) -> set[int]:
    """The tokens that may follow a text."""
    answer = constrained(constraint)
    answer.advance(tokens_of(text))
    return set(np.flatnonzero(answer.allowed(NO_TREE)[0]))


def test_only_tokens_of_the_form_may_follow() -> None:
    assert after("") == {ord("{")}  # what is forced comes in the tokenizer's own tokens
    assert after('{"ab": 1') == {*b"0123456789,", TOKENS.index(b"10"), TOKENS.index(b", ")}
    assert END not in after('{"ab": 1')


def test_json_has_one_form_of_white_space() -> None:
    """A small model would write white space for ever."""
    assert ord("\n") not in after("{")
    assert ord(" ") not in after('{"ab": ')


@given(st.data())
def test_after_each_node_the_same_may_follow_as_after_its_path_alone(data: st.DataObject) -> None:
    """Trees of right and wrong tokens, in any order of depth."""
    right = [*tokens_of('{"ab": 12, "ok": true}'), END]
    start = data.draw(st.integers(0, len(right) - 1))
    size = data.draw(st.integers(1, 8))
    tokens: list[int] = []
    parents: list[int] = []
    depths: list[int] = []
    for node in range(size):
        parent = data.draw(st.integers(-1, node - 1))
        depth = 0 if parent < 0 else depths[parent] + 1
        likely = right[min(start + depth, len(right) - 1)]
        tokens.append(data.draw(st.sampled_from([likely, likely, likely, ord("x"), ord("1"), END])))
        parents.append(parent)
        depths.append(depth)
    tree = DraftTree(tuple(tokens), tuple(parents))
    answer = constrained()
    answer.advance(right[:start])
    masks = answer.allowed(tree)
    assert np.array_equal(answer.allowed(NO_TREE)[0], masks[0])  # the draft has left no trace
    for row, path in enumerate(tree.paths, 1):
        alone = constrained()
        try:
            alone.advance([*right[:start], *path])
        except ConfigError:
            continue  # the target cannot choose it
        if path[-1] != END:
            assert np.array_equal(alone.allowed(NO_TREE)[0], masks[row])


@given(st.randoms(use_true_random=False))
def test_whatever_is_chosen_is_of_the_form(random) -> None:  # type: ignore[no-untyped-def]
    answer, tokens = constrained(), list[int]()
    while len(tokens) < 60:
        token = random.choice(list(np.flatnonzero(answer.allowed(NO_TREE)[0])))
        tokens.append(int(token))
        if token == END:
            break
        answer.advance([int(token)])
    else:
        return  # an integer may be as long as it likes
    value = json.loads(text_of(tokens))
    assert {name: type(each) for name, each in value.items()} == {"ab": int, "ok": bool}


def test_tokens_that_are_not_of_the_form_are_refused() -> None:
    with pytest.raises(ConfigError, match="Token 3 of the answer does not have the form"):
        constrained().advance(tokens_of('{"x'))


@pytest.mark.parametrize(("constraint", "text"), [
    (choice_of(["yes", "no.", "né"]), "no."),
    (Constraint(ConstraintKind.REGEX, r"\d{3}-[a-c]+"), "123-abc"),
    (Constraint(ConstraintKind.LARK, 'start: "a" (B | "c")+\nB: /b{2}/'), "abbc"),
    (Constraint(ConstraintKind.JSON_OBJECT), '{"any": [1, {"deep": null}]}'),
])  # fmt: skip
def test_each_kind_reads_its_text(constraint: Constraint, text: str) -> None:
    assert END in after(text, constraint)
    assert END not in after(text[:2], constraint)


def test_slow_masks_are_found_apart_and_counted() -> None:
    now, step = [0.0], [0.0]

    def clock() -> float:
        now[0] += step[0]
        return now[0]

    answer = ConstrainedText(SCHEMA.kind, compile_grammar(SCHEMA, byte_vocabulary()), byte_vocabulary(), clock)
    answer.allowed(NO_TREE)
    assert not answer.needs_time(MOST_UNREAD)
    assert answer.needs_time(MOST_UNREAD + 1)  # of an answer that comes from another server
    step[0] = 3e-3
    answer.advance(tokens_of("{"))
    step[0] = 0.0
    assert answer.is_slow
    assert answer.needs_time(1)
    answer.allowed(NO_TREE)
    assert not answer.needs_time(1)
    assert answer.take_ms() == pytest.approx(3.0)
    assert answer.take_ms() == 0.0
    answer.advance(tokens_of('"ab": 12'))
    answer.allowed(NO_TREE)
    assert not answer.is_slow  # it was once, which fades
    step[0] = 2 * MOST_SECONDS
    with says(ConfigError, "The JSON schema cannot be enforced: one answer takes more than 60 s"):
        answer.advance(tokens_of("3"))
