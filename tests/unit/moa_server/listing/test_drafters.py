"""The table of published drafters, how a model is recognised in it, and what --drafter auto takes."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from inline_snapshot import snapshot
from moa_server.listing import drafters
from moa_server.listing.drafters import (
    FORMS,
    KNOWN,
    Candidate,
    Fit,
    KnownDrafter,
    cached_drafters,
    choose_drafter,
    known_drafter,
    known_for,
    known_of_sizes,
    ranked,
)
from moa_shared.drafter import published, published_files
from moa_shared.drafter.checkpoint.checkpoint import load_checkpoint, save_checkpoint
from moa_shared.drafter.checkpoint.shipped import DRAFTER_FILE
from moa_shared.drafter.companion import KNOWN_COMPANIONS
from moa_shared.drafter.published import find_drafter, model_key
from moa_shared.errors import CheckpointError
from moa_shared.models import ModelFiles, resolve
from moa_shared.models.sources.hub import HUB_ID
from moa_shared.programs.progress import SilentProgress

from tests.support.model_places import places, put_into_hub  # noqa: F401 (a fixture)
from tests.support.published_drafters import EAGLE_CONFIG, MOA_CONFIG, eagle_tensors, moa_tensors, publish, save_llama3

pytestmark = pytest.mark.torch

README = Path(__file__).parents[4] / "README.md"
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


def candidate(name: str, form: str = "eagle3", target: str = "") -> Candidate:
    known = known_drafter(name)
    return Candidate(name, HERE, FORMS[form], known.target if known is not None else target)


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


def test_the_more_promising_kind_comes_first() -> None:
    promising = candidate("z-lab/Qwen3-8B-DFlash-b16", "dflash")
    first, second = candidate("RedHatAI/Qwen3-8B-speculator.eagle3"), candidate("AngelSlim/Qwen3-8B_eagle3")
    assert names(second, first, promising) == [promising.name, first.name, second.name]


FOR_TINY = {"speculators_config": {"verifier": {"name_or_path": "owner/Tiny-Llama3"}}}


class Notes(SilentProgress):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        self.lines.append(line)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    folder = tmp_path_factory.mktemp("model") / "tiny-llama3"
    return resolve(str(save_llama3(folder)), tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def _without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(*_: object) -> Path:
        raise AssertionError("nothing may be fetched")

    monkeypatch.setenv("MOA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(published, "fetch_from_hub", fetch)


@pytest.fixture
def hub(places: dict[str, Path]) -> Path:  # noqa: F811
    return places["hub"]


def put(hub: Path, name: str, tensors: dict[str, torch.Tensor], config: dict[str, Any], **how: Any) -> Path:
    folder = publish(hub.parent / "made" / name, tensors, config, **how)
    return put_into_hub(hub, name, {path.name: path for path in folder.iterdir()})


def chosen(files: ModelFiles) -> tuple[str | None, list[str]]:
    notes = Notes()
    found = choose_drafter(files, progress=notes)
    if found is not None:
        assert found[1].is_file()
    return (found[0] if found is not None else None), notes.lines


def test_what_the_cache_has_for_the_model(hub: Path, files: ModelFiles) -> None:
    put(hub, "owner/eagle", eagle_tensors(), EAGLE_CONFIG | FOR_TINY, pickled=True)
    put(hub, "owner/moa", moa_tensors(), MOA_CONFIG)
    put(hub, "owner/wide", {"fc.weight": torch.zeros(8, 16)}, EAGLE_CONFIG | {"hidden_size": 8})
    put(hub, "owner/whole", {"lm_head.weight": torch.zeros(8, 8)}, {"num_hidden_layers": 40}, pickled=True)
    put(hub, "owner/other", eagle_tensors(), EAGLE_CONFIG | {"hidden_size": 8}, pickled=True)
    put_into_hub(hub, "owner/nothing", {})
    found = cached_drafters(files.config, files.fingerprint)
    assert [(each.name, each.form.name, each.fit([files.target_id])) for each in found] == [
        ("owner/eagle", "eagle2", Fit.MODEL),
        ("owner/moa", "moa", Fit.SIZES),
    ]
    assert chosen(files) == snapshot(
        (
            "owner/eagle",
            [
                "The drafter is owner/eagle: it is on this machine, and EAGLE-2 is the most promising kind of those that are."
            ],
        )
    )


def test_what_cannot_be_used_is_passed_over(hub: Path, files: ModelFiles) -> None:
    broken = eagle_tensors()
    broken["fc.weight"][0, 0] = torch.nan
    put(hub, "owner/broken", broken, EAGLE_CONFIG | FOR_TINY)
    assert chosen(files) == snapshot(
        (
            None,
            [
                "The drafter owner/broken is passed over: In owner/broken fc.weight holds values that are not numbers.",
                "There is no drafter for tiny-llama3 on this machine that is known to be for it; `moa-server drafters tiny-llama3` lists those that fit by their sizes.",
            ],
        )
    )


def test_of_all_that_the_cache_holds_only_headers_are_read(
    hub: Path, files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights of a quantised model are whole numbers of many gigabytes."""
    put(hub, "owner/eagle", eagle_tensors(), EAGLE_CONFIG)
    put(hub, "owner/quantised", {"model.layers.0.qweight": torch.ones(8, 8, dtype=torch.int32)}, {})

    def read(tensor: object) -> None:
        raise AssertionError("a tensor was read")

    monkeypatch.setattr(published_files, "_stored", read)
    assert [each.name for each in cached_drafters(files.config, files.fingerprint)] == ["owner/eagle"]


@pytest.mark.parametrize("of_target", [True, False])
def test_one_that_was_trained_here_for_this_very_model_is_taken(
    hub: Path, files: ModelFiles, tmp_path: Path, of_target: bool
) -> None:
    made = load_checkpoint(find_drafter(str(publish(tmp_path / "moa", moa_tensors(), MOA_CONFIG)), files))
    config = replace(made.config, target_fingerprint=files.fingerprint if of_target else "")
    save_checkpoint(tmp_path / DRAFTER_FILE, config, dict(made.tensors))
    put_into_hub(hub, "owner/trained", {DRAFTER_FILE: tmp_path / DRAFTER_FILE})
    assert chosen(files)[0] == ("owner/trained" if of_target else None)


def test_without_any_it_says_what_could_be_fetched(
    hub: Path, files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert chosen(files)[1] == snapshot(
        ["There is no drafter for tiny-llama3 on this machine, and none is known; `moa-train fit` makes one."]
    )
    config = files.config
    sizes = config["hidden_size"], config["num_hidden_layers"], config["vocab_size"]
    forms = (FORMS[name] for name in ("peagle", "eagle2", "moa"))
    known = [KnownDrafter("", "", "a/b", sizes, f"a/{form.name}", form, "", "") for form in forms]
    monkeypatch.setattr(drafters, "known_for", lambda *_: known)
    assert chosen(files)[1] == snapshot(
        ["There is no drafter for tiny-llama3 on this machine. To fetch one: --drafter a/moa (Mixture of Attentions)."]
    )


def test_the_table_knows_a_form_better_than_the_layout(
    hub: Path, files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(hub, KNOWN[0].hub_id, eagle_tensors(), EAGLE_CONFIG)
    assert [each.form for each in cached_drafters(files.config, "")] == [KNOWN[0].form]
    assert drafters.in_hub_cache(KNOWN[0].hub_id)
    assert not drafters.in_hub_cache(KNOWN[1].hub_id)


def test_a_drafter_with_another_tokenizer_is_refused(files: ModelFiles, tmp_path: Path) -> None:
    folder = publish(tmp_path / "foreign", eagle_tensors(), EAGLE_CONFIG)
    tokenizer = json.loads((files.folder / "tokenizer.json").read_text("utf-8"))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    assert find_drafter(str(folder), files).is_file()
    special = {token["id"] for token in tokenizer["added_tokens"]}
    vocabulary = tokenizer["model"]["vocab"]
    first, second = [token for token, number in vocabulary.items() if number not in special][:2]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    with pytest.raises(CheckpointError, match="foreign is for a model with other tokens: its token 1 is 'w3', that"):
        find_drafter(str(folder), files)


def test_a_drafter_that_names_another_model_is_taken_and_said(files: ModelFiles, tmp_path: Path) -> None:
    other = {"speculators_config": {"verifier": {"name_or_path": "/somewhere/Qwen3-8B"}}}
    folder, notes = publish(tmp_path / "named", eagle_tensors(), EAGLE_CONFIG | other), Notes()
    assert find_drafter(str(folder), files, progress=notes).is_file()
    assert [line.replace(str(tmp_path), "TMP") for line in notes.lines] == snapshot(
        ["The drafter TMP/named says that it was trained for /somewhere/Qwen3-8B; here it drafts for tiny-llama3."]
    )
