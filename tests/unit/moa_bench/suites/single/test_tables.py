"""The tables say what is compared, where drafting loses, whose text differs and what is missing."""

from __future__ import annotations

from typing import Any

import pytest
from moa_bench.suites.single import SUITE, SingleEffort
from moa_bench.suites.single.figures import LLAMA_CPP, SERVER
from moa_bench.suites.single.tables import render

from tests.unit.moa_bench.suites.single.test_figures import round_of, took

TREE, SERVED = "MoA, N = 3: tree", "MoA, N = 3: as served"


def result(facts: dict[str, Any], llama_ms: float = 240.0, *, same: bool = True) -> dict[str, Any]:
    answers = {
        TREE: took(240.0, forwards=4, nodes=80),
        SERVED: took(80.0, forwards=5, nodes=10, same=same),
        SERVER: took(120.0, forwards=None, nodes=None),
        LLAMA_CPP: took(llama_ms, forwards=None, nodes=None, same=False),
    }
    return facts | {
        "name": "single",
        "level": "int8",
        "effort": SingleEffort(),
        "rounds": [round_of("qa", answers), round_of("code", answers), round_of("sum", {}, short=True)],
        "peers": [SERVER, LLAMA_CPP],
        "own_text": [LLAMA_CPP],
        "served": SERVED,
        "details": {LLAMA_CPP: "llama.cpp v1, 1 thread"},
        "missing": {"EAGLE-2": "no checkpoint is given (--drafter)"},
    }


def test_methods_beside_plain_serving_with_what_is_lost(facts: dict[str, Any]) -> None:
    text = render(result(facts))
    assert "2 questions, each asked of all methods in turn on the same core, greedy, on the level int8;" in text
    assert "1 questions had shorter answers and are left out." in text
    assert "| MoA, N = 3: as served | 125.0 | 1.50 (1.50 to 1.50) | 1.22 | 2.00 | 2.0 | 100 | 10.0 |  |" in text
    assert "| MoA, N = 3: tree | 41.7 | 0.50 (0.50 to 0.50) | 0.65 | 2.50 | 20.0 | 100 | 10.0 |  |" in text
    assert "Token by token, all answers are plain serving's." in text
    assert "Slower than plain serving: MoA, N = 3: tree. There the drafts" in text
    assert "| method | all (2) | qa (1) | code (1) |" in text
    assert "- EAGLE-2: no checkpoint is given (--drafter)" in text


def test_peers_with_the_ratio_to_each_of_ours(facts: dict[str, Any]) -> None:
    text = render(result(facts))
    row = "| llama.cpp | 41.7 | 100 | 10.0 | 2.00 (2.00 to 2.00) | 2.00 (2.00 to 2.00) | 3.00 (3.00 to 3.00) | 1.55 (1.55 to 1.55) | own text; same for 18 % |"
    assert row in text
    assert "- llama.cpp: llama.cpp v1, 1 thread" in text
    assert f"That {SERVER} is at least 1.5 times as fast as llama.cpp holds after the first token (2.00), and " in text
    assert "holds over whole answers (1.55).\n" in text


@pytest.mark.parametrize(("llama_ms", "held"), [(181.0, "holds"), (179.0, "does not hold")])
def test_the_aim_is_judged_by_the_server_over_loopback(facts: dict[str, Any], llama_ms: float, held: str) -> None:
    assert f"1.5 times as fast as llama.cpp {held} after the first token (1." in render(result(facts, llama_ms))


def test_an_exact_method_that_changes_a_text_is_named(facts: dict[str, Any]) -> None:
    text = render(result(facts, same=False))
    assert "| MoA, N = 3: as served | 125.0 | changes the text |  |" in text
    assert f"Answers that are not plain serving's, and are in no speed-up: {SERVED} (2)." in text


def test_without_peers_no_aim_is_judged(facts: dict[str, Any]) -> None:
    some = result(facts)
    for each in some["rounds"]:
        each["answers"].pop(LLAMA_CPP, None)
    assert "times as fast as llama.cpp" not in render(some)


def test_the_estimate_grows_with_the_questions() -> None:
    assert SUITE.seconds(SUITE.effort(quick=True)) < SUITE.seconds(SUITE.full)
