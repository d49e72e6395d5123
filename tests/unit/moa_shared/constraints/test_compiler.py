"""Constraints over the default model's vocabulary, and the limits of what is compiled."""

from __future__ import annotations

import json

import numpy as np
import pytest
from moa_shared.constraints.compiler import REFUSAL_SECONDS, ConstraintCompiler
from moa_shared.errors import ConfigError
from moa_shared.models.sources.files import ModelFiles
from moa_shared.models.tokenizer.tokenizer import Tokenizer, load_tokenizer
from moa_shared.sampling.settings import Constraint, ConstraintKind, choice_of
from moa_shared.tree.draft_tree import DraftTree

ROWS = 49_160  # eight more than the tokenizer has tokens
NO_TREE = DraftTree((), ())


@pytest.fixture(scope="module")
def tokenizer(default_model_files: ModelFiles) -> Tokenizer:
    return load_tokenizer(default_model_files)


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


def test_a_schema_that_cannot_be_enforced_is_refused_as_the_child_says(compiler: ConstraintCompiler) -> None:
    with pytest.raises(ConfigError, match="uses not, which cannot be enforced"):
        compiler.begin(Constraint(ConstraintKind.JSON_SCHEMA, '{"not": {}}'))


def test_a_schema_that_takes_too_long_is_refused(compiler: ConstraintCompiler) -> None:
    schema = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(8000)}}
    with pytest.raises(ConfigError, match="The JSON schema cannot be enforced: it takes more than"):
        compiler.begin(Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(schema)))


def test_what_was_refused_is_refused_again_without_a_child_for_a_while(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, tried = [0.0], list[Constraint]()

    class Child:
        def try_constraint(self, constraint: Constraint) -> None:
            tried.append(constraint)
            raise ConfigError("It is refused.", hint="Leave it out.")

    monkeypatch.setattr("moa_shared.constraints.compiler.constraint_child", Child)
    monkeypatch.setattr("moa_shared.constraints.compiler.REFUSALS_KEPT", 2)
    compiler = ConstraintCompiler(tokenizer, ROWS, [0], clock=lambda: now[0])

    def ask(name: str) -> None:
        with pytest.raises(ConfigError, match=r"It is refused\. Leave it out\."):
            compiler.begin(choice_of([name]))

    for name in ("a", "a", "b", "a"):
        ask(name)
    assert [each.choices[0] for each in tried] == ["a", "b"]
    ask("c")  # one too many to remember
    ask("a")
    assert [each.choices[0] for each in tried] == ["a", "b", "c", "a"]
    now[0] = REFUSAL_SECONDS + 1
    ask("a")
    assert len(tried) == 5
