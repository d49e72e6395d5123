"""One device: methods have one text, rounds ask each in turn, peers are asked alike, and tables say what is compared."""

import gc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from inline_snapshot import snapshot
from moa_bench.harness.questions import BenchQuestion
from moa_bench.registry import LLAMA_CPP, SingleEffort
from moa_bench.suites.single.measure import ask_round, choose
from moa_bench.suites.single.methods import Ask, MethodAnswer, load_drafters, load_engine, methods_of, oracle_methods
from moa_bench.suites.single.tables import ALL, PLAIN, SERVER, MethodFigures, figures_of, render
from moa_shared.errors import DataError
from moa_shared.models import ModelFiles, resolve
from moa_shared.programs.progress import Progress
from moa_shared.sampling.settings import Sampling

from tests.support.messages import raises
from tests.support.tiny_models import save_drafter, save_tiny_model, small_drafter
from tests.unit.moa_bench.suites.test_capacity import FACTS

PROMPT = [5, 9, 11, 40, 5, 9, 11]
TEXT = (5, 6, 7, 8)
KINDS: dict[str, dict[str, Any]] = {
    "EAGLE-2": {"kind": "eagle2"},
    "independent": {"kind": "independent"},
    "EAGLE-3": {"kind": "eagle3", "state_entries": (2, 0, 1)},
    "MoA, N = 0": {},
    "MoA, N = 1": {"reused_layers": 1},
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    folder = tmp_path_factory.mktemp("single")
    return resolve(str(save_tiny_model(folder / "model")), folder / "cache")


@pytest.fixture(scope="module")
def drafters(files: ModelFiles, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("drafters")
    return {
        name: save_drafter(folder / f"{number}.safetensors", small_drafter(**changes))
        for number, (name, changes) in enumerate(KINDS.items())
    }


def cpu_s(method: str) -> float:
    return 0.0


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8, seed=3, repeat_penalty=1.1)])
def test_a_round_of_all_drafters_has_one_text(files: ModelFiles, drafters: dict[str, Path], sampling: Sampling) -> None:
    engine, given = load_engine(files, "int8", Progress(), sampling), load_drafters(files, drafters)
    methods = methods_of(engine, files, given, SingleEffort(chain=3, copies=4, depth=2, breadth=3, nodes=5))
    shapes = [f"{name}: {shape}" for name in KINDS for shape in ("chain", "tree", "as served")]
    shapes.remove("independent: as served")  # it reads no rows, so no server drafts with it
    assert list(methods) == [PLAIN, "prompt look-up", *shapes]
    found = ask_round(methods, {}, PROMPT, cpu_s, most=24, least=2)
    answers = {name: answer for name, each in found["answers"].items() for answer in each}
    assert all(answer["same"] for answer in answers.values())
    assert answers[PLAIN]["forwards"] == found["tokens"] - 1 > 1
    for name in KINDS:
        assert answers[f"{name}: chain"]["nodes"] > answers[f"{name}: chain"]["forwards"]
        assert answers[f"{name}: tree"]["nodes"] > answers[f"{name}: chain"]["forwards"]
        assert answers[f"{name}: tree"]["forwards"] <= answers[PLAIN]["forwards"]


def test_oracles_replay_what_plain_serving_wrote(files: ModelFiles) -> None:
    effort = SingleEffort(chain=3, depth=3, nodes=5, acceptances=(0.5, 0.9))
    methods = oracle_methods(load_engine(files, "int8", Progress(), Sampling()), effort)
    assert [name for name in methods if "oracle" in name] == [
        "oracle, 0.5: chain",
        "oracle, 0.5: as served",
        "oracle, 0.9: chain",
        "oracle, 0.9: as served",
        "oracle, 0.9, trees: tree",
        "oracle, 0.9, trees: as served",
    ]
    for prompt in (PROMPT, PROMPT[:4]):
        found = ask_round(methods, {}, prompt, cpu_s, most=24, least=2)["answers"]
        assert all(answer["same"] for each in found.values() for answer in each)
        forwards = {name: answer["forwards"] for name, (answer, *_) in found.items()}
        assert forwards["oracle, 0.9: chain"] < forwards["oracle, 0.5: chain"] < forwards[PLAIN]
        assert forwards["oracle, 0.9, trees: tree"] < forwards[PLAIN]


def test_categories_take_turns_and_long_prompts_are_passed_over() -> None:
    named = (("a", "long"), ("a", "x"), ("a", "y"), ("a", "z"), ("b", "w"))
    prompts = {"long": [1] * 9, "x": [1], "y": [1], "z": [1], "w": [1]}
    questions = [BenchQuestion(*each) for each in named]
    assert [each.text for each in choose(questions, prompts, 2, 8)] == ["x", "w", "y"]
    with raises(DataError, snapshot("No question has at most 0 tokens. Name others with --questions.")):
        choose(questions, prompts, 2, 0)


def scripted(name: str, tokens: Sequence[int], asked: list[tuple[str, int]]) -> Ask:
    def ask(prompt: Sequence[int], most: int) -> MethodAnswer:
        assert list(prompt) == [1, 2]
        assert not gc.isenabled()
        asked.append((name, most))
        return MethodAnswer(tuple(tokens), 10.0, 20.0, 3, 6)

    return ask


def test_plain_serving_is_first_and_last_and_others_write_as_many_tokens() -> None:
    asked: list[tuple[str, int]] = []
    exact = {PLAIN: scripted(PLAIN, TEXT, asked), "tree": scripted("tree", TEXT, asked)}
    others = {"theirs": scripted("theirs", (5, 6, 9, 8), asked)}
    found = ask_round(exact, others, [1, 2], lambda method: 0.5 * len(asked), most=16, least=2, turn=1)
    assert asked == [(PLAIN, 16), ("theirs", 4), ("tree", 16), (PLAIN, 16)]
    assert (found["prompt_tokens"], found["tokens"], found["short"]) == (2, 4, False)
    assert [len(found["answers"][name]) for name in (PLAIN, "tree", "theirs")] == [2, 1, 1]
    assert found["answers"]["tree"][0] == {
        "tokens": 4, "first_ms": 10.0, "steady_ms": 20.0, "forwards": 3, "nodes": 6, "cpu_s": 0.5, "common": 4,
        "same": True,
    }  # fmt: skip
    assert (found["answers"]["theirs"][0]["common"], found["answers"]["theirs"][0]["same"]) == (2, False)
    assert gc.isenabled()


def took(
    steady_ms: float, *, tokens: int = 11, forwards: int | None = 10, nodes: int | None = 0, same: bool = True
) -> dict[str, Any]:
    return {
        "tokens": tokens, "first_ms": 100.0, "steady_ms": steady_ms, "forwards": forwards, "nodes": nodes,
        "common": tokens if same else 2, "same": same, "cpu_s": 0.11,
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
        round_of("sum", {}, short=True),
    ]
    figures = figures_of(rounds, [])
    assert {each.category for each in figures} == {ALL, "qa", "code"}
    found, of_category = find(figures, "tree"), find(figures, "tree", "qa")
    assert found.speed_up is not None
    assert (found.speed_up.median, found.speed_up.count) == (1.5, 2)
    assert found.whole_speed_up is not None
    assert found.whole_speed_up.median == pytest.approx((220 / 160 + 1.0) / 2, abs=1e-4)
    assert (found.acceptance, found.nodes, found.cpu_ms) == (2.0, 2.0, 10.0)
    assert found.tokens_per_s.median == pytest.approx((1e3 / 6 + 1e3 / 12) / 2, abs=1e-3)
    assert of_category.speed_up is not None
    assert (of_category.speed_up.median, of_category.questions) == (2.0, 1)
    in_one_piece = find(figures_of([round_of("qa", {"tree": took(0.0, tokens=10)})], []), "tree")
    assert in_one_piece.tokens_per_s.median == 100.0


def test_a_changed_text_is_in_no_speed_up_of_an_exact_method() -> None:
    rounds = [round_of("qa", {"tree": took(60.0, same=False)}), round_of("qa", {"tree": took(120.0)})]
    found = find(figures_of(rounds, []), "tree")
    assert found.speed_up is not None
    assert (found.speed_up.median, found.speed_up.count, found.other_texts) == (1.0, 1, 1)
    assert find(figures_of(rounds[:1], []), "tree").speed_up is None


def test_tables_say_what_is_compared_and_where_drafting_loses() -> None:
    answers = {
        "MoA, N = 3: tree": took(240.0, forwards=4, nodes=80),
        "MoA, N = 3: as served": took(80.0, forwards=5, nodes=10),
        "another": took(80.0, same=False),
        SERVER: took(120.0, forwards=None, nodes=None),
        LLAMA_CPP: took(240.0, forwards=None, nodes=None, same=False),
    }
    made = {
        "level": "int8",
        "effort": SingleEffort(),
        "rounds": [round_of("qa", answers), round_of("code", answers), round_of("sum", {}, short=True)],
        "peers": [SERVER, LLAMA_CPP],
        "own_text": [LLAMA_CPP],
        "served": "MoA, N = 3: as served",
        "details": {LLAMA_CPP: "llama.cpp v1, 1 thread"},
        "missing": {"EAGLE-2": "nobody knows"},
    }
    text = render(FACTS | made)
    for part in (
        "2 questions, each asked of all methods in turn on the same core, greedy, on the level int8;",
        "| MoA, N = 3: as served | 125.0 | 1.50 (1.50 to 1.50) | 1.22 | 2.00 | 2.0 | 100 | 10.0 |",
        "| MoA, N = 3: tree | 41.7 | 0.50 (0.50 to 0.50) | 0.65 | 2.50 | 20.0 | 100 | 10.0 |",
        "| another | 125.0 | changes the text |  |",
        "Answers that are not plain serving's, and are in no speed-up: another (2).",
        "Slower than plain serving: MoA, N = 3: tree. There the drafts",
        "| llama.cpp | 41.7 | 100 | 10.0 | 2.00 (2.00 to 2.00) | 2.00 (2.00 to 2.00) | 3.00 (3.00 to 3.00) | 1.55 (1.55 to 1.55) | own text; same for 18 % |",
        "- llama.cpp: llama.cpp v1, 1 thread",
    ):
        assert part in text
