"""Divergence, perplexity and agreement on distributions that are known."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from moa_bench.suites.engine.quality.measure import Answered, Sums, compare, log_softmax
from moa_server.verifier.kernel_target import KernelTarget


def logits(*rows: tuple[float, ...]) -> np.ndarray:
    return np.log(np.array(rows, np.float32))


def test_sums_over_known_distributions() -> None:
    reference, other = logits((0.5, 0.25, 0.25), (0.25, 0.5, 0.25)), logits((0.25, 0.5, 0.25), (0.25, 0.5, 0.25))
    expected, got = Sums(), Sums()
    expected.add(reference, reference, [0, 1])
    got.add(reference, other, [0, 1])
    quality = got.quality("int8", "avx2", expected)
    assert quality.divergence == pytest.approx((0.5 * math.log(2) - 0.25 * math.log(2)) / 2)
    assert quality.perplexity == pytest.approx(math.sqrt(4 * 2))
    assert quality.perplexity_ratio == pytest.approx(math.sqrt(4 * 2) / 2)
    assert quality.agreement == 0.5
    same = expected.quality("float32", "torch", expected)
    assert (same.divergence, same.perplexity_ratio, same.agreement) == (0.0, 1.0, 1.0)


def test_large_logits_do_not_overflow() -> None:
    rows = log_softmax(np.array([[1e4, 0.0]], np.float32))
    assert rows[0, 0] == 0.0
    assert rows[0, 1] == -1e4


def test_texts_are_compared_where_the_answer_is_chosen(make_target: Callable[[], KernelTarget]) -> None:
    target = make_target()
    text = Answered((5, 6, 7), tuple(range(70)))  # longer than a block
    sums = {"float32": Sums(), "int8": Sums()}
    compare({"float32": target, "int8": target}, text, sums)
    assert sums["int8"].positions == 70
    assert sums["int8"].divergence == 0.0
    whole = target.forward(target.new_cache(), [*text.prompt, *text.answer], logits_for=range(2, 72)).logits
    losses = -log_softmax(whole)[np.arange(70), np.arange(70)]
    assert sums["float32"].loss == pytest.approx(float(losses.sum()))
