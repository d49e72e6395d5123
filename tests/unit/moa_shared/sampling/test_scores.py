"""Settings of sampling, scores, and the choice among them."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_shared.errors import ConfigError
from moa_shared.sampling.scores import TextBefore, adjusted, largest, log_softmax
from moa_shared.sampling.settings import MOST_BYTES, Constraint, ConstraintKind, Sampling, sampling_defaults


@given(st.sampled_from([1, 3, 1000, 16_384]), st.sampled_from([0.1, 3.0, 50.0]), st.integers(0, 999))
def test_log_softmax_is_that_of_float64_to_the_last_places(width: int, spread: float, seed: int) -> None:
    scores = np.float32(spread) * np.random.default_rng(seed).standard_normal((2, 3, width), np.float32)
    shifted = scores.astype(np.float64) - scores.max(-1, keepdims=True)
    exact = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    ours = log_softmax(scores)
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, exact, rtol=3e-7, atol=2e-6)


@given(
    st.sampled_from([1, 2, 300, 511, 512, 5000]), st.sampled_from([1, 2, 16, 300]), st.booleans(), st.integers(0, 999)
)
def test_the_largest_come_first_and_equal_ones_by_column(width: int, count: int, coarse: bool, seed: int) -> None:
    scores = np.random.default_rng(seed).standard_normal((4, width), np.float32)
    if coarse:
        scores = np.round(scores)
    count = min(count, width)
    values, columns = largest(scores, count)
    expected = [[column for _, column in sorted(zip(-row, range(width), strict=True))][:count] for row in scores]
    assert columns.tolist() == expected
    np.testing.assert_array_equal(values, np.take_along_axis(scores, columns, axis=1))


@pytest.mark.parametrize("width", [5, 5000])
def test_a_row_without_numbers_has_columns_all_the_same(width: int) -> None:
    scores = np.full((2, width), np.nan, np.float32)
    scores[1, 3:] = -np.inf
    values, columns = largest(scores, 4)
    assert values.shape == columns.shape == (2, 4)
    assert len(set(columns[0].tolist())) == len(set(columns[1].tolist())) == 4


VOCAB = 9
Rows = npt.NDArray[np.float32]

TOKENS = st.lists(st.integers(0, VOCAB - 1), max_size=30)
PENALTIES = st.builds(
    Sampling,
    repeat_penalty=st.sampled_from([1.0, 0.5, 1.3]),
    repeat_last_n=st.sampled_from([-1, 0, 1, 2, 5, 64]),
    presence_penalty=st.sampled_from([0.0, -0.5, 1.5]),
    frequency_penalty=st.sampled_from([0.0, 0.7, -2.0]),
    logit_bias=st.dictionaries(st.integers(0, VOCAB + 2), st.floats(-100, 100), max_size=3).map(
        lambda bias: tuple(bias.items())
    ),
)


def logits(rows: int, seed: int = 0) -> Rows:
    return 3 * np.random.default_rng(seed).standard_normal((rows, VOCAB), np.float32)


def by_the_rules(row: Rows, text: Sequence[int], answer: Sequence[int], sampling: Sampling) -> list[float]:
    """Token by token, in plain numbers."""
    window = sampling.repeat_last_n
    repeated = set(text if window < 0 else text[max(0, len(text) - window) :])
    counts, bias = Counter(answer), dict(sampling.logit_bias)
    found: list[float] = []
    for token, logit in enumerate(row.tolist()):
        value = logit + bias.get(token, 0.0)
        if token in repeated:
            value = value / sampling.repeat_penalty if value > 0 else value * sampling.repeat_penalty
        if token in counts:
            value -= sampling.presence_penalty + counts[token] * sampling.frequency_penalty
        found.append(value)
    return found


@given(TOKENS, TOKENS, st.lists(TOKENS, min_size=1, max_size=4), PENALTIES)
def test_each_row_is_that_of_the_rules(
    prompt: list[int], answer: list[int], paths: list[list[int]], sampling: Sampling
) -> None:
    rows, text = logits(len(paths)), [*prompt, *answer]
    positions = [len(text) + len(path) for path in paths]
    within = sampling.within(len(prompt))
    before = TextBefore(text, paths) if sampling.reads_text else None
    changed = adjusted(rows, positions, within, before)
    for path, row, original in zip(paths, changed, rows, strict=True):
        expected = by_the_rules(original, [*text, *path], [*answer, *path], sampling)
        np.testing.assert_allclose(row, expected, rtol=1e-5, atol=1e-4)


@given(TOKENS, TOKENS, st.lists(TOKENS, min_size=1, max_size=4), PENALTIES)
def test_a_node_of_a_tree_has_the_bits_of_its_path_alone(
    prompt: list[int], answer: list[int], paths: list[list[int]], sampling: Sampling
) -> None:
    """Also of its newest tokens alone, as many as are said to count: that is what makes drafts exact."""
    rows, text = logits(len(paths)), [*prompt, *answer]
    positions = [len(text) + len(path) for path in paths]
    within = sampling.within(len(prompt))
    together = adjusted(rows, positions, within, TextBefore(text, paths))
    for at, path in enumerate(paths):
        whole = [*text, *path]
        newest = whole[len(whole) - within.looks_back(len(whole)) :]
        alone = adjusted(rows[at : at + 1], positions[at : at + 1], within, TextBefore(newest, [()]))
        np.testing.assert_array_equal(together[at], alone[0])


@given(TOKENS, st.lists(TOKENS, min_size=1, max_size=3), PENALTIES, st.permutations(range(VOCAB)))
def test_a_reduced_vocabulary_has_the_columns_of_the_whole(
    text: list[int], paths: list[list[int]], sampling: Sampling, order: list[int]
) -> None:
    rows, ids = logits(len(paths)), np.array(order[: VOCAB // 2])
    positions, before = [len(text) + len(path) for path in paths], TextBefore(text, paths)
    reduced = adjusted(rows[:, ids], positions, sampling, before, ids)
    np.testing.assert_array_equal(reduced, adjusted(rows, positions, sampling, before)[:, ids])


def test_the_targets_logits_are_left_as_they_are() -> None:
    rows = logits(1)
    assert not np.array_equal(adjusted(rows, [1], Sampling(logit_bias=((1, 5.0),))), rows)
    np.testing.assert_array_equal(rows, logits(1))


@pytest.mark.parametrize(("kind", "text", "message"), [
    (ConstraintKind.JSON_SCHEMA, "", "The JSON schema has no text"),
    (ConstraintKind.JSON_SCHEMA, "{", "The JSON schema is not JSON: Expecting property name enclosed in"),
    (ConstraintKind.JSON_SCHEMA, "[]", "The JSON schema is not a JSON object"),
    (ConstraintKind.JSON_SCHEMA, "[" * 100_000, "The JSON schema is not JSON: maximum recursion depth exceeded"),
    (ConstraintKind.JSON_OBJECT, "{}", "The JSON object has a text, expected none"),
    (ConstraintKind.CHOICE, "[]", "The choice is of 0 texts, expected 1 to 1000"),
    (ConstraintKind.CHOICE, '["a", 1]', "The choice is not an array of texts, each of one character or more"),
    (ConstraintKind.REGEX, "x" * (MOST_BYTES + 1), "The regular expression has 262,145 bytes, at most 262,144 are"),
], ids=lambda each: str(each)[:30])  # fmt: skip
def test_what_is_no_constraint_is_refused(kind: ConstraintKind, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Constraint(kind, text)


@pytest.mark.parametrize(("generation", "expected"), [
    ({}, {}), ({"_from_model_config": True, "eos_token_id": 2, "transformers_version": "4.42.3"}, {}),
    ({"do_sample": True, "temperature": 0.6, "top_p": 0.9}, {"temperature": 0.6, "top_p": 0.9}),
    ({"temperature": 1, "top_k": 20.0, "min_p": None}, {"temperature": 1.0, "top_k": 20}),
    ({"top_k": -1}, {"top_k": 0}), ({"repetition_penalty": 1.05}, {"repeat_penalty": 1.05, "repeat_last_n": -1}),
    ({"repetition_penalty": 1.1, "repeat_last_n": 64}, {"repeat_penalty": 1.1, "repeat_last_n": 64}),
    ({"do_sample": False, "temperature": 0.6}, {"temperature": 0.0}),
])  # fmt: skip
def test_what_a_model_says_about_sampling(generation: dict[str, Any], expected: dict[str, Any]) -> None:
    assert sampling_defaults(generation) == expected


@pytest.mark.parametrize(("generation", "words"), [
    ({"temperature": "warm"}, "temperature is 'warm', expected a number"),
    ({"temperature": True}, "temperature is True, expected a number"),
    ({"top_k": 1.5}, "top_k is 1.5, expected a whole number"),
    ({"top_p": 0}, "top_p is 0.0, expected more than 0"),
    ({"repetition_penalty": 0}, "repeat_penalty is 0.0, expected 0.01 to 100"),
    ({"do_sample": "no"}, "do_sample is 'no', expected true or false"),
])  # fmt: skip
def test_values_that_cannot_be_used(generation: dict[str, Any], words: str) -> None:
    with pytest.raises((ConfigError, ValueError), match=words):
        sampling_defaults(generation)
