"""The table of published drafters, how a model is recognised in it, what --drafter auto takes, and which ones fit."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from moa_server import listing
from moa_server.listing import (
    FORMS,
    KNOWN,
    Drafter,
    best_known,
    cached_drafters,
    choose_drafter,
    drafters_text,
    known_drafter,
    known_for,
    list_drafters,
)
from moa_server.loading import AUTO, check_drafter, drafter_paths, load_host
from moa_server.observing import read_host
from moa_server.settings import ServerSettings
from moa_shared.drafter import published
from moa_shared.drafter.checkpoint import DRAFTER_FILE, load_checkpoint, save_checkpoint
from moa_shared.drafter.kinds import DrafterConfig
from moa_shared.drafter.published import find_drafter
from moa_shared.drafting.estimates import TRIAL_TOKENS
from moa_shared.errors import CheckpointError, ModelSourceError
from moa_shared.models import ModelFiles, resolve
from moa_shared.models.catalogue import CATALOGUE
from moa_shared.models.hub import HUB_ID
from moa_shared.models.network.plan import kv_width
from moa_shared.programs.progress import Progress
from structlog.testing import capture_logs

from tests.support.families import tiny_dense
from tests.support.model_places import places, put_into_hub  # noqa: F401 (a fixture)
from tests.support.published_drafters import (
    EAGLE_CONFIG,
    MOA_CONFIG,
    eagle_tensors,
    moa_tensors,
    publish,
    publish_assistant,
    publish_mtp,
    save_gemma4,
    save_llama3,
)
from tests.support.tiny_models import HYBRID, SIZES, save_drafter, small_drafter, tiny_model

pytestmark = pytest.mark.torch

README = Path(__file__).parents[3] / "README.md"
QWEN3_8B = {"hidden_size": 4096, "num_hidden_layers": 36, "vocab_size": 151936}


@pytest.mark.parametrize(
    "name",
    [
        "Qwen/Qwen3-8B", "Qwen/Qwen3-8B@main", "Qwen/Qwen3-8B-FP8", "unsloth/Qwen3-8B-GGUF:Q4_K_M",
        "Qwen3-8B-Q4_K_M.gguf", "Qwen3-8B-UD-Q4_K_XL-00001-of-00002.gguf", "/models/Qwen3-8B/", "Qwen3 8B",
    ],
)  # fmt: skip
def test_a_model_is_recognised_however_it_is_stored(name: str) -> None:
    found = known_for([name], QWEN3_8B)
    assert found == known_for([name])
    assert {each.target for each in found} == {"Qwen/Qwen3-8B"}
    assert found[0].form.name == "dflash"


def test_another_model_is_not_and_the_name_alone_is_not_enough() -> None:
    others = ["Qwen/Qwen3-8B-Base", "DeepSeek-R1-0528-Qwen3-8B", "Qwen/Qwen3-80B", "me/my-Qwen3-8B", "qwen3:8b", ""]
    assert known_for(others) == ()
    assert known_for(["Qwen3-8B"], QWEN3_8B | {"hidden_size": 1024}) == ()
    llamas = known_for(["bartowski/Meta-Llama-3.1-8B-Instruct-GGUF", "Llama 3.1 8B Instruct"])
    assert {each.target for each in llamas} == {"meta-llama/Llama-3.1-8B-Instruct"}


def test_the_table_is_sound() -> None:
    ids = [each.name for each in KNOWN]
    assert len({each.casefold() for each in ids}) == len(ids)
    for each in KNOWN:
        assert HUB_ID.fullmatch(each.name)
        assert HUB_ID.fullmatch(each.target)
        assert each.seen.startswith("https://")
        assert known_drafter(f"{each.name}@main") is each
        assert each in known_for([each.target])
    assert known_drafter("nobody/knows") is None


def test_readme_names_models_with_drafters_and_companions_that_are_known_for_them() -> None:
    rows = re.findall(
        r"\| `moa-server serve (\S+)(?: --drafter (\S+) --companion (\S+))?` \|", README.read_text("utf-8")
    )
    assert 4 <= len(rows) <= 6
    for model, drafter, companion in rows:
        if (listed := CATALOGUE.get(model)) is not None:  # these two go with it
            assert best_known([listed.hub])
            assert listed.companion
        else:
            assert drafter in {each.name for each in known_for([model])}
            assert companion in {each.companion for each in CATALOGUE.values()}


def named(target: str) -> dict[str, Any]:
    return {"speculators_config": {"verifier": {"name_or_path": target}}}


FOR_TINY = named("owner/Tiny-Llama3")


class Notes(Progress):
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
    monkeypatch.setenv("MOA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(published, "fetch_from_hub", Mock(side_effect=AssertionError("nothing may be fetched")))


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


def test_a_models_own_head_is_taken_where_nothing_better_is_here(hub: Path, tmp_path: Path) -> None:
    folder = save_llama3(tmp_path / "tiny-llama3")
    publish_mtp(tmp_path / "head")
    own = resolve(str(folder))
    put(hub, "owner/eagle", eagle_tensors(), EAGLE_CONFIG | FOR_TINY, pickled=True)
    [(name, path)] = drafter_paths(AUTO, own)
    assert (name, check_drafter(path, own).config.kind) == ("mtp", "mtp")
    put(hub, "owner/promising", moa_tensors(), MOA_CONFIG | FOR_TINY)
    listed = [(each.name, each.place) for each in list_drafters(str(folder), None, Progress()).drafters]
    assert listed == [("owner/promising", "this machine"), ("mtp", "the model"), ("owner/eagle", "this machine")]
    assert [each for each, _ in drafter_paths(AUTO, own)] == ["promising"]


def test_what_the_cache_has_for_the_model(hub: Path, files: ModelFiles) -> None:
    """The table, or its own configuration, names the model; the more promising kind comes first."""
    put(hub, "owner/eagle", eagle_tensors(), EAGLE_CONFIG | FOR_TINY, pickled=True)
    put(hub, "owner/promising", moa_tensors(), MOA_CONFIG | FOR_TINY)
    put(hub, "owner/by-size", eagle_tensors(), EAGLE_CONFIG)
    put(hub, "owner/anothers", eagle_tensors(), EAGLE_CONFIG | named("owner/Tiny-Llama3-Base"))
    put(hub, "owner/wide", {"fc.weight": torch.zeros(8, 16)}, EAGLE_CONFIG | FOR_TINY | {"hidden_size": 8})
    put(hub, KNOWN[1].name, eagle_tensors(), EAGLE_CONFIG | FOR_TINY)
    put_into_hub(hub, "owner/nothing", {})
    names = [files.target_id]
    found = cached_drafters(names, files.config, files.fingerprint)
    assert [(each.name, each.form.name) for each in found] == [("owner/promising", "moa"), ("owner/eagle", "eagle2")]
    found = cached_drafters([KNOWN[1].target], files.config, "")
    assert [(each.name, each.form) for each in found] == [(KNOWN[1].name, KNOWN[1].form)]  # not as its layout looks
    assert [each.name for each in cached_drafters([KNOWN[1].target], {}, "")] == [KNOWN[1].name]
    taken, [line] = chosen(files)
    assert taken == "owner/promising"
    assert "and Mixture of Attentions is the most promising kind of those that are." in line


NOTHING = "There is no drafter for tiny-llama3 on this machine"
UNKNOWN = f"{NOTHING}, and none is known; `moa-train fit` makes one."


def test_what_cannot_be_used_is_passed_over(hub: Path, files: ModelFiles) -> None:
    broken = eagle_tensors()
    broken["fc.weight"][0, 0] = torch.nan
    put(hub, "owner/broken", broken, EAGLE_CONFIG | FOR_TINY)
    passed = "The drafter owner/broken is passed over: In owner/broken fc.weight holds values that are not numbers."
    assert chosen(files) == (None, [passed, UNKNOWN])


def test_of_all_that_the_cache_holds_only_headers_are_read(
    hub: Path, files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights of a quantised model are whole numbers of many gigabytes."""
    put(hub, "owner/eagle", eagle_tensors(), EAGLE_CONFIG | FOR_TINY)
    put(hub, "owner/quantised", {"model.layers.0.qweight": torch.ones(8, 8, dtype=torch.int32)}, FOR_TINY)
    monkeypatch.setattr(published, "_stored", Mock(side_effect=AssertionError("a tensor was read")))
    assert [each.name for each in cached_drafters(["tiny-llama3"], files.config, "")] == ["owner/eagle"]


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
    assert chosen(files)[1] == [UNKNOWN]
    forms = (FORMS[name] for name in ("peagle", "eagle2", "moa"))
    known = [Drafter(f"a/{form.name}", form, "a/b") for form in forms]
    monkeypatch.setattr(listing, "known_for", lambda *_: known)
    assert chosen(files)[1] == [f"{NOTHING}. To fetch one: --drafter a/moa (Mixture of Attentions)."]
    find, notes = Mock(side_effect=[Path("made"), ModelSourceError("It is gone.", hint="Look.")]), Notes()
    monkeypatch.setattr(listing, "find_drafter", find)
    found = [choose_drafter(files, progress=notes, fetches=True) for _ in range(2)]  # as for a model of the catalogue
    assert (found, notes.lines) == ([("a/moa", Path("made")), None], [f"{NOTHING}. It is gone. Look."])


def test_a_drafter_with_another_tokenizer_is_refused_and_one_that_names_another_model_taken_and_said(
    files: ModelFiles, tmp_path: Path
) -> None:
    folder = publish(tmp_path / "foreign", eagle_tensors(), EAGLE_CONFIG)
    tokenizer = json.loads((files.folder / "tokenizer.json").read_text("utf-8"))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    assert find_drafter(str(folder), files).is_file()
    special = {token["id"] for token in tokenizer["added_tokens"]}
    vocabulary = tokenizer["model"]["vocab"]
    first, second = [token for token, number in vocabulary.items() if number not in special][:2]
    vocabulary |= {first: vocabulary[second], second: vocabulary[first]}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    with pytest.raises(CheckpointError, match="foreign is for a model with other tokens: its token 1 is 'w3', that"):
        find_drafter(str(folder), files)
    folder, notes = publish(tmp_path / "named", eagle_tensors(), EAGLE_CONFIG | named("/somewhere/Qwen3-8B")), Notes()
    assert find_drafter(str(folder), files, progress=notes).is_file()
    assert "says that it was trained for /somewhere/Qwen3-8B; here it drafts for tiny-llama3." in notes.lines[0]


def test_the_default_is_auto_and_takes_what_is_shipped(default_model_files: ModelFiles) -> None:
    assert ServerSettings().drafter == AUTO
    assert [name for name, _ in drafter_paths(AUTO, default_model_files)] == ["default", "deep"]


def test_a_drafter_of_the_hubs_cache_is_served_and_dropped_by_its_trial(
    places: dict[str, Path],  # noqa: F811
    tmp_path: Path,
) -> None:
    model, cache = save_llama3(tmp_path / "tiny-llama3"), tmp_path / "cache"
    named = {"speculators_config": {"verifier": {"name_or_path": "owner/tiny-llama3"}}}
    folder = publish(tmp_path / "eagle", eagle_tensors(), EAGLE_CONFIG | named)
    put_into_hub(places["hub"], "owner/eagle", {path.name: path for path in folder.iterdir()})
    settings = ServerSettings(model=str(model), execution="int8", threads=1, port=0, cache_dir=cache)
    host = load_host(settings, Progress())
    assert [each.name for each in host.services.served.drafters] == ["eagle"]
    assert read_host(host, None)["moa_drafter_dropped"] == {"eagle": False}
    [source] = host.services.engine.stepper.sources
    assert source.drafter is not None
    with capture_logs() as logs:
        for _ in range(TRIAL_TOKENS):
            source.drafter.trial.add(1, 2, 1)
    assert read_host(host, None)["moa_drafter_dropped"] == {"eagle": True}
    [warning] = logs
    assert warning["event"].startswith("the drafter guesses worse than look-up and is dropped")
    assert (warning["drafter"], warning["target"], warning["log_level"]) == ("eagle", "tiny-llama3", "warning")


def test_auto_takes_the_assistant_of_a_gemma_4(hub: Path, tmp_path: Path) -> None:
    name, model = "google/gemma-4-E2B-it-assistant", save_gemma4(tmp_path / "gemma-4-E2B-it")
    assert known_for(["unsloth/gemma-4-E2B-it-GGUF:Q4_K_M"])[0].name == name
    folder = publish_assistant(tmp_path / "assistant")
    put_into_hub(hub, name, {path.name: path for path in folder.iterdir()})
    files = resolve(str(model), tmp_path / "cache")
    found = choose_drafter(files, tmp_path / "cache")
    assert found is not None
    assert (found[0], load_checkpoint(found[1]).config.kind) == (name, "assistant")
    assert check_drafter(found[1], files).config.memory_layers == (1, 2)
    listed = drafters_text(list_drafters(str(model), tmp_path / "cache", Progress()))
    assert re.search(rf"{name}\s+Gemma 4 assistant\s+this machine\s+google/gemma-4-E2B-it\s+apache-2.0", listed)


def test_a_drafter_for_layers_that_differ_names_the_widest_one_and_reuses_none_that_needs_more_than_rows(
    tmp_path: Path,
) -> None:
    model = tiny_dense("gemma 4 with embeddings by layer").config.to_dict()
    files, path = ModelFiles("gemma", tmp_path, model, (), "", ""), tmp_path / "it.safetensors"
    fitting = DrafterConfig(
        vocab_size=SIZES["vocab_size"], hidden_size=64, target_layers=6, target_heads=4, target_kv_heads=2,
        target_head_dim=32, sa_kv_heads=2, sa_mlp=16, ca_kv_heads=2, ca_mlp=16, lsa_heads=4, lsa_kv_heads=2, lsa_mlp=16,
        target_kv_width=kv_width(model),
    )  # fmt: skip
    assert check_drafter(save_drafter(path, fitting), files).config.kv_width == 256
    with pytest.raises(CheckpointError, match="safetensors is for another target: its KV width is"):
        check_drafter(save_drafter(path, replace(fitting, target_kv_width=0)), files)
    with pytest.raises(CheckpointError, match="safetensors runs the last"):
        check_drafter(save_drafter(path, replace(fitting, reused_layers=2)), files)


@pytest.mark.parametrize("reused", [0, 1, 2])
def test_of_a_model_with_recurrent_states_the_last_layer_alone_is_reused(tmp_path: Path, reused: int) -> None:
    model = tiny_model(HYBRID, layer_types=[*["linear_attention"] * 2, "full_attention"]).config
    files, path = ModelFiles("hybrid", tmp_path, model, (), "", ""), tmp_path / "it.safetensors"
    save_drafter(path, small_drafter(reused_layers=reused))
    if reused < 2:
        assert check_drafter(path, files).config.kv_width == 128  # of the layers with attention
        return
    with pytest.raises(CheckpointError, match="which cannot compute them: layer 1 has a recurrent state, which holds"):
        check_drafter(path, files)
