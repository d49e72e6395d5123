"""The table of published drafters, how a model is recognised in it, and which one `--drafter auto` takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from moa_shared.drafter.choice.automatic import Candidate, Fit, MeasuredDrafter, ranked, recall_trial, remember_trial
from moa_shared.drafter.choice.known import (
    FORMS,
    KNOWN,
    known_drafter,
    known_for,
    known_of_sizes,
)
from moa_shared.drafter.companion.known import KNOWN_COMPANIONS
from moa_shared.drafter.published.find import model_key
from moa_shared.drafting.estimates import TRIAL_TOKENS, DrafterTrial
from moa_shared.models.sources.hub import HUB_ID

README = Path(__file__).parents[5] / "README.md"
QWEN3_8B = {"hidden_size": 4096, "num_hidden_layers": 36, "vocab_size": 151936}


@pytest.mark.parametrize(
    "name",
    [
        "Qwen/Qwen3-8B",
        "Qwen/Qwen3-8B@main",
        "Qwen/Qwen3-8B-FP8",
        "unsloth/Qwen3-8B-GGUF:Q4_K_M",
        "Qwen3-8B-Q4_K_M.gguf",
        "Qwen3-8B-UD-Q4_K_XL-00001-of-00002.gguf",
        "/models/Qwen3-8B/",
        "Qwen3 8B",
    ],
)
def test_a_model_is_recognised_however_it_is_stored(name: str) -> None:
    found = known_for([name], QWEN3_8B)
    assert found == known_for([name])
    assert {each.target for each in found} == {"Qwen/Qwen3-8B"}
    assert found[0].form.name == "dflash"


@pytest.mark.parametrize(
    "name", ["Qwen/Qwen3-8B-Base", "DeepSeek-R1-0528-Qwen3-8B", "Qwen/Qwen3-80B", "me/my-Qwen3-8B", "qwen3:8b", ""]
)
def test_another_model_is_not(name: str) -> None:
    assert known_for([name]) == ()


def test_the_name_alone_is_not_enough() -> None:
    assert known_for(["Qwen3-8B"], QWEN3_8B | {"hidden_size": 1024}) == ()
    assert {each.target for each in known_of_sizes(QWEN3_8B)} == {"Qwen/Qwen3-8B"}


def test_llama_by_any_of_its_names() -> None:
    names = ("meta-llama/Llama-3.1-8B-Instruct", "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF", "Llama 3.1 8B Instruct")
    assert len({model_key(name) for name in names}) == 1
    assert model_key("meta-llama/Meta-Llama-3-8B-Instruct") != model_key(names[0])


def test_the_table_is_sound() -> None:
    ids = [each.hub_id for each in KNOWN]
    assert len({each.casefold() for each in ids}) == len(ids)
    for each in KNOWN:
        assert HUB_ID.fullmatch(each.hub_id)
        assert HUB_ID.fullmatch(each.target)
        assert each.seen.startswith("https://")
        assert known_drafter(f"{each.hub_id}@main") is each
        assert each in known_for([each.target])
    assert known_drafter("nobody/knows") is None


def test_readme_names_models_with_drafters_and_companions_that_are_known_for_them() -> None:
    row = r"serve hub:(\S+) --drafter (\S+) --companion hub:(\S+)`"
    rows = re.findall(row, README.read_text("utf-8"))
    assert 4 <= len(rows) <= 6
    companions = {model_key(each.hub) for each in KNOWN_COMPANIONS}
    for model, drafter, companion in rows:
        assert drafter in {each.hub_id for each in known_for([model])}
        assert model_key(companion) in companions


NAMES = ("unsloth/Qwen3-8B-GGUF:Q4_K_M",)
HERE = Path("snapshot")


def candidate(name: str, form: str = "eagle3", target: str = "", measured: MeasuredDrafter | None = None) -> Candidate:
    return Candidate(name, HERE, FORMS[form], target, measured)


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
    promising = candidate("z-lab/Qwen3-8B-DFlash-b16", "dflash")
    first, second = candidate("RedHatAI/Qwen3-8B-speculator.eagle3"), candidate("AngelSlim/Qwen3-8B_eagle3")
    assert names(second, first, promising) == [promising.name, first.name, second.name]
    measured = candidate(second.name, measured=MeasuredDrafter(200, 110, 20, False))
    assert names(measured, first, promising)[0] == second.name
    assert measured.reason == "it was right in 55% of its guesses here"
    dropped = candidate(promising.name, "dflash", measured=MeasuredDrafter(200, 2, 20, True))
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
