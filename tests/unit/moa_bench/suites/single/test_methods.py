"""All drafters, chains and trees, on a tiny target: whatever drafts, the text is plain serving's."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from inline_snapshot import snapshot
from moa_bench.suites.single import SingleEffort
from moa_bench.suites.single.figures import PLAIN
from moa_bench.suites.single.measure import ask_locally
from moa_bench.suites.single.methods import (
    Oracles,
    load_drafters,
    load_engine,
    methods_of,
    missing_drafters,
    split_companions,
)
from moa_bench.suites.single.rounds import ask_round
from moa_shared.drafter import load_checkpoint
from moa_shared.errors import CheckpointError
from moa_shared.models import ModelFiles, resolve
from moa_shared.programs.progress import SilentProgress
from moa_shared.sampling.settings import Sampling

from tests.support.messages import raises
from tests.support.tiny_models import save_drafter, save_tiny_model, small_drafter

EFFORT = SingleEffort(chain=3, copies=4, depth=2, breadth=3, nodes=5)
PROMPT = [5, 9, 11, 40, 5, 9, 11]
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


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8, seed=3, repeat_penalty=1.1)])
def test_a_round_of_all_drafters_has_one_text(files: ModelFiles, drafters: dict[str, Path], sampling: Sampling) -> None:
    given = load_drafters(files, drafters)
    methods = methods_of(load_engine(files, "int8", SilentProgress(), sampling), files, given, EFFORT)
    shapes = [f"{name}: {shape}" for name in KINDS for shape in ("chain", "tree", "as served")]
    shapes.remove("independent: as served")  # it reads no rows, so no server drafts with it
    assert list(methods) == [PLAIN, "prompt look-up", *shapes]
    exact = {name: partial(ask_locally, ask, sampling) for name, ask in methods.items()}
    found = ask_round(exact, {}, PROMPT, most=24, least=2)
    answers = {name: answer for name, each in found["answers"].items() for answer in each}
    assert all(answer["same"] for answer in answers.values())
    assert found["tokens"] > 2
    assert answers[PLAIN]["forwards"] == found["tokens"] - 1
    for name in KINDS:
        assert answers[f"{name}: chain"]["nodes"] > answers[f"{name}: chain"]["forwards"]
        assert answers[f"{name}: tree"]["nodes"] > answers[f"{name}: chain"]["forwards"]
        assert answers[f"{name}: tree"]["forwards"] <= answers[PLAIN]["forwards"]


def test_the_paper_s_drafters_that_are_not_given_are_named(files: ModelFiles, drafters: dict[str, Path]) -> None:
    given = {name: load_checkpoint(path) for name, path in drafters.items()}
    assert missing_drafters(given) == ["MoA, N = 3", "MoA, N = 6", "MoA, N = 12"]
    assert load_drafters(files, {}) == {}  # none comes with moa for this target


def test_a_drafter_for_another_target_is_refused(files: ModelFiles, tmp_path: Path) -> None:
    other = save_drafter(tmp_path / "other.safetensors", small_drafter(hidden_size=32))
    with raises(
        CheckpointError,
        snapshot(
            "The drafter TMP/other.safetensors is for another target: its hidden size is 32, model has 64. Give another --drafter, or --drafter none."
        ),
    ):
        load_drafters(files, {"mine": other})


def test_oracles_replay_what_plain_serving_wrote(files: ModelFiles) -> None:
    effort = SingleEffort(chain=3, depth=3, nodes=5, acceptances=(0.5, 0.9))
    methods = Oracles(load_engine(files, "int8", SilentProgress()), effort).methods()
    assert [name for name in methods if "oracle" in name] == [
        "oracle, 0.5: chain",
        "oracle, 0.5: as served",
        "oracle, 0.9: chain",
        "oracle, 0.9: as served",
        "oracle, 0.9, trees: tree",
        "oracle, 0.9, trees: as served",
    ]
    exact = {name: partial(ask_locally, ask, Sampling()) for name, ask in methods.items()}
    for prompt in (PROMPT, PROMPT[:4]):
        found = ask_round(exact, {}, prompt, most=24, least=2)["answers"]
        assert all(answer["same"] for each in found.values() for answer in each)
        forwards = {name: answer["forwards"] for name, (answer, *_) in found.items()}
        assert forwards["oracle, 0.9: chain"] < forwards["oracle, 0.5: chain"] < forwards[PLAIN]
        assert forwards["oracle, 0.9, trees: tree"] < forwards[PLAIN]


def test_companions_are_told_from_checkpoints() -> None:
    named = {"mine": Path("a.safetensors"), "small": Path("companion:folder/small.gguf")}
    assert split_companions(named) == ({"mine": Path("a.safetensors")}, {"small": "folder/small.gguf"})
