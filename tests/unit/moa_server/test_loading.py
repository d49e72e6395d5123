"""The server with `--drafter auto`: what it takes, what becomes of the drafter's trial, and which ones fit."""

from dataclasses import replace
from pathlib import Path

import pytest
from moa_server.loading import AUTO, check_drafter, drafter_paths, load_host
from moa_server.observing import read_host
from moa_server.settings import ServerSettings
from moa_shared.drafter.kinds import DrafterConfig
from moa_shared.drafting.estimates import TRIAL_TOKENS
from moa_shared.errors import CheckpointError, ConfigError
from moa_shared.models import ModelFiles
from moa_shared.models.network.plan import kv_width_if_differing
from moa_shared.programs.progress import SilentProgress
from structlog.testing import capture_logs

from tests.support.families import tiny_dense
from tests.support.model_places import places, put_into_hub  # noqa: F401 (a fixture)
from tests.support.published_drafters import EAGLE_CONFIG, eagle_tensors, publish, save_llama3
from tests.support.tiny_models import SIZES, save_drafter

pytestmark = pytest.mark.torch


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
    host = load_host(settings, SilentProgress())
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


def test_a_budget_that_holds_no_conversation_is_refused(tmp_path: Path) -> None:
    model = save_llama3(tmp_path / "tiny-llama3")
    settings = ServerSettings(model=str(model), drafter="none", execution="int8", kv_bytes=10, cache_dir=tmp_path)
    with pytest.raises(ConfigError, match="holds no conversation: one of"):
        load_host(settings, SilentProgress())


def test_a_drafter_for_layers_that_differ_names_the_widest_one_and_reuses_none_that_needs_more_than_rows(
    tmp_path: Path,
) -> None:
    model = tiny_dense("gemma 4 with embeddings by layer").config.to_dict()
    files, path = ModelFiles("gemma", tmp_path, model, (), "", ""), tmp_path / "it.safetensors"
    fitting = DrafterConfig(
        vocab_size=SIZES["vocab_size"], hidden_size=64, target_layers=6, target_heads=4, target_kv_heads=2,
        target_head_dim=32, sa_kv_heads=2, sa_mlp=16, ca_kv_heads=2, ca_mlp=16, lsa_heads=4, lsa_kv_heads=2, lsa_mlp=16,
        target_kv_width=kv_width_if_differing(model),
    )  # fmt: skip
    assert check_drafter(save_drafter(path, fitting), files).config.kv_width == 256
    with pytest.raises(CheckpointError, match="safetensors is for another target: its KV width is"):
        check_drafter(save_drafter(path, replace(fitting, target_kv_width=0)), files)
    with pytest.raises(CheckpointError, match="safetensors runs the last"):
        check_drafter(save_drafter(path, replace(fitting, reused_layers=2)), files)
