"""Which drafter `--drafter auto` takes."""

from __future__ import annotations

from pathlib import Path

from moa_shared.drafter.choice.choosing import Candidate, Fit, ranked
from moa_shared.drafter.choice.known import Kind
from moa_shared.drafter.choice.measured import MeasuredDrafter, recall_trial, remember_trial
from moa_shared.drafting.trial import TRIAL_TOKENS, DrafterTrial

NAMES = ("unsloth/Qwen3-8B-GGUF:Q4_K_M",)
HERE = Path("snapshot")


def candidate(
    name: str, kind: Kind = Kind.EAGLE3, target: str = "", measured: MeasuredDrafter | None = None
) -> Candidate:
    return Candidate(name, HERE, kind, target, measured)


def names(*candidates: Candidate) -> list[str]:
    return [each.name for each in ranked(candidates, NAMES)]


def test_only_what_is_known_to_be_for_the_model() -> None:
    by_table = candidate("AngelSlim/Qwen3-8B_eagle3")
    by_name = candidate("somebody/spec", target="Qwen/Qwen3-8B")
    by_size = candidate("somebody/drafter")
    anothers = candidate("AngelSlim/Qwen3-14B_eagle3")
    misnamed = candidate("somebody/other", target="Qwen/Qwen3-8B-Base")
    assert [each.fit(NAMES) for each in (by_table, by_name, by_size, anothers, misnamed)] == [
        Fit.MODEL,
        Fit.MODEL,
        Fit.SIZES,
        Fit.ANOTHER,
        Fit.ANOTHER,
    ]
    assert names(misnamed, anothers, by_size, by_name, by_table) == ["AngelSlim/Qwen3-8B_eagle3", "somebody/spec"]


def test_what_was_measured_comes_before_what_is_promised() -> None:
    promising = candidate("z-lab/Qwen3-8B-DFlash-b16", Kind.DFLASH)
    first, second = candidate("RedHatAI/Qwen3-8B-speculator.eagle3"), candidate("AngelSlim/Qwen3-8B_eagle3")
    assert names(second, first, promising) == [promising.name, first.name, second.name]
    measured = candidate(second.name, measured=MeasuredDrafter(200, 110, 20, False))
    assert names(measured, first, promising)[0] == second.name
    assert measured.reason == "it was right in 55% of its guesses here"
    dropped = candidate(promising.name, Kind.DFLASH, measured=MeasuredDrafter(200, 2, 20, True))
    assert names(dropped, first) == [first.name]


def test_the_result_of_a_trial_is_kept(tmp_path: Path) -> None:
    trial = DrafterTrial()
    for index in range(TRIAL_TOKENS):
        trial.add(1, 2, 1 if index % 2 else None)
    assert recall_trial(tmp_path, "drafter", "f00") is None
    remember_trial(tmp_path, "drafter", "f00", trial)
    assert recall_trial(tmp_path, "drafter", "f00") == MeasuredDrafter(TRIAL_TOKENS, 0, 100, True)
    assert recall_trial(tmp_path, "drafter", "f01") is None
    [record] = (tmp_path / "hashes").iterdir()
    for damaged in ("{", '{"tokens": 0, "right": 0, "looked_up": 0}', '{"tokens": "many", "right": 1, "looked_up": 1}'):
        record.write_text(damaged)
        assert recall_trial(tmp_path, "drafter", "f00") is None
