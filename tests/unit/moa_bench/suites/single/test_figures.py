"""Figures: pairs of the same question, acceptance after the first token, and texts that differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from moa_bench.suites.single.figures import ALL, PLAIN, MethodFigures, figures_of, plain_over


def took(
    steady_ms: float, *, tokens: int = 11, forwards: int | None = 10, nodes: int | None = 0, same: bool = True
) -> dict[str, Any]:
    return {
        "tokens": tokens, "first_ms": 100.0, "steady_ms": steady_ms, "forwards": forwards, "nodes": nodes,
        "common": tokens if same else 2, "same": same, "cpu_s": 0.11, "joules": None,
    }  # fmt: skip


def round_of(category: str, answers: Mapping[str, Any], *, short: bool = False) -> dict[str, Any]:
    plain = [took(100.0), took(140.0)]
    return {"category": category, "short": short, "answers": {PLAIN: plain} | {n: [a] for n, a in answers.items()}}


def find(figures: list[MethodFigures], method: str, category: str = ALL) -> MethodFigures:
    return next(each for each in figures if (each.method, each.category) == (method, category))


def test_a_speed_up_is_to_the_mean_of_plain_serving_before_and_after() -> None:
    rounds = [
        round_of("qa", {"tree": took(60.0, forwards=5, nodes=20)}),
        round_of("code", {"tree": took(120.0, forwards=5)}),
    ]
    found = find(figures_of(rounds, []), "tree")
    assert found.speed_up is not None
    assert (found.speed_up.median, found.speed_up.count) == (1.5, 2)
    assert found.whole_speed_up is not None
    assert found.whole_speed_up.median == pytest.approx((220 / 160 + 1.0) / 2, abs=1e-4)
    assert (found.acceptance, found.nodes) == (2.0, 2.0)
    assert (found.cpu_ms, found.joules) == (10.0, None)
    assert found.tokens_per_s.median == pytest.approx((1e3 / 6 + 1e3 / 12) / 2, abs=1e-3)
    of_category = find(figures_of(rounds, []), "tree", "qa")
    assert of_category.speed_up is not None
    assert of_category.speed_up.median == 2.0
    assert of_category.questions == 1


def test_an_answer_in_one_piece_has_the_speed_of_all_of_its_time() -> None:
    found = find(figures_of([round_of("qa", {"tree": took(0.0, tokens=10)})], []), "tree")
    assert found.tokens_per_s.median == 100.0


def test_a_changed_text_is_in_no_speed_up_of_an_exact_method() -> None:
    rounds = [round_of("qa", {"tree": took(60.0, same=False)}), round_of("qa", {"tree": took(120.0)})]
    found = find(figures_of(rounds, []), "tree")
    assert found.speed_up is not None
    assert (found.speed_up.median, found.speed_up.count) == (1.0, 1)
    assert found.other_texts == 1
    none = find(figures_of(rounds[:1], []), "tree")
    assert none.speed_up is None
    assert none.whole_speed_up is None


def test_a_text_of_its_own_is_compared_by_speed() -> None:
    rounds = [round_of("qa", {"theirs": took(240.0, same=False, forwards=None, nodes=None)})]
    found = find(figures_of(rounds, ["theirs"]), "theirs")
    assert found.speed_up is not None
    assert found.speed_up.median == 0.5
    assert (found.acceptance, found.nodes, found.common) == (None, None, round(2 / 11, 4))
    over = plain_over(rounds, "theirs")
    assert over is not None
    assert over.median == 2.0
    assert plain_over(rounds, "theirs", "tree") is None


def test_short_answers_are_in_no_figure() -> None:
    rounds = [round_of("qa", {"tree": took(60.0)}), round_of("sum", {}, short=True)]
    figures = figures_of(rounds, [])
    assert {each.category for each in figures} == {ALL, "qa"}
    assert find(figures, PLAIN).questions == 1
