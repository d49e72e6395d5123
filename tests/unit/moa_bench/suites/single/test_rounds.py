"""A round asks every method once and plain serving twice, and says how far each text is plain serving's."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path

import pytest
from moa_bench.harness.answers import TimedAnswer
from moa_bench.report.energy import EnergyMeter
from moa_bench.suites.single.figures import PLAIN
from moa_bench.suites.single.local_server import LocalAnswer, LocalStep
from moa_bench.suites.single.rounds import Ask, MethodAnswer, ask_round

TEXT = (5, 6, 7, 8)


def scripted(name: str, tokens: Sequence[int], asked: list[tuple[str, int]]) -> Ask:
    def ask(prompt: Sequence[int], most: int) -> MethodAnswer:
        assert list(prompt) == [1, 2]
        assert not gc.isenabled()
        asked.append((name, most))
        return MethodAnswer(tuple(tokens), 10.0, 20.0, 3, 6)

    return ask


@pytest.fixture(autouse=True)
def no_energy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("moa_bench.suites.single.rounds.METER", EnergyMeter(tmp_path))


def test_plain_serving_is_first_and_last_and_others_write_as_many_tokens() -> None:
    asked: list[tuple[str, int]] = []
    exact = {name: scripted(name, TEXT, asked) for name in (PLAIN, "tree")}
    others = {"theirs": scripted("theirs", (5, 6, 9, 8), asked)}
    found = ask_round(exact, others, [1, 2], lambda method: 0.5 * len(asked), most=16, least=2, turn=1)
    assert asked == [(PLAIN, 16), ("theirs", 4), ("tree", 16), (PLAIN, 16)]
    assert (found["prompt_tokens"], found["tokens"], found["short"]) == (2, 4, False)
    assert [len(found["answers"][name]) for name in (PLAIN, "tree", "theirs")] == [2, 1, 1]
    assert found["answers"]["tree"][0] == {
        "tokens": 4, "first_ms": 10.0, "steady_ms": 20.0, "forwards": 3, "nodes": 6, "cpu_s": 0.5, "joules": None,
        "common": 4, "same": True,
    }  # fmt: skip
    assert (found["answers"]["theirs"][0]["common"], found["answers"]["theirs"][0]["same"]) == (2, False)
    assert gc.isenabled()


@pytest.mark.parametrize("tokens", [TEXT[:3], (*TEXT, 9)])
def test_a_text_of_another_length_is_another_text(tokens: tuple[int, ...]) -> None:
    exact = {PLAIN: scripted(PLAIN, TEXT, []), "tree": scripted("tree", tokens, [])}
    found = ask_round(exact, {}, [1, 2], most=16, least=2)
    assert not found["answers"]["tree"][0]["same"]


def test_a_short_answer_is_not_asked_of_the_others() -> None:
    asked: list[tuple[str, int]] = []
    exact = {name: scripted(name, TEXT, asked) for name in (PLAIN, "tree")}
    found = ask_round(exact, {}, [1, 2], most=16, least=5)
    assert asked == [(PLAIN, 16)]
    assert found["short"]
    assert list(found["answers"]) == [PLAIN]


def test_answers_of_both_kinds_say_what_came_after_the_first_token() -> None:
    local = LocalAnswer((5, 6, 7, 8), 50.0, (LocalStep(2, 3, 12.0, 1.0), LocalStep(1, 0, 10.0, 0.0)))
    assert MethodAnswer.local(local) == MethodAnswer((5, 6, 7, 8), 50.0, 23.0, 2, 3)
    assert MethodAnswer.timed(TimedAnswer((5, 6), (0.5, 0.75))) == MethodAnswer((5, 6), 500.0, 250.0)
