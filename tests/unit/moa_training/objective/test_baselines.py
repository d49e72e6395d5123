from __future__ import annotations

from pathlib import Path

import pytest
import torch
from inline_snapshot import snapshot
from moa_shared.drafter import load_checkpoint
from moa_shared.errors import ConfigError
from moa_shared.models import ModelFiles
from moa_shared.programs.progress import SilentProgress
from moa_training.data.text import prepare
from moa_training.fit.fit import TrainingRun
from moa_training.objective.objective import TrainingBaseline
from moa_training.report import read_points
from moa_training.settings import load_fit_settings

from tests.support.messages import raises
from tests.support.tiny_training import write_conversations, write_fit_config


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory, files: ModelFiles) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    prepare(files, [write_conversations(folder / "in.jsonl", 60)], folder / "a.jsonl.zst", 64, SilentProgress())
    return folder / "a.jsonl.zst"


def configured(folder: Path, files: ModelFiles, shard: Path, drafter: str, tokens: int = 8000) -> Path:
    path = write_fit_config(folder, files.folder, shard, tokens=tokens)
    path.write_text(path.read_text().replace("reused_layers = 1", drafter))
    return path


@pytest.mark.parametrize(
    "drafter",
    [
        'kind = "eagle2"\nwarm_start = false',
        'kind = "independent"\nown_layers = 2',
        "lsa = false",
        "lsa = false\nreused_layers = 1",
        "lsa = false\nreused_layers = 1\nstate_entries = [1, 2, 3]",
        "ca = false\nreused_layers = 1",
        'kind = "eagle3"\nstate_entries = [1, 2, 3]',
        'kind = "eagle3"\nstate_entries = [1, 2, 3]\neagle31 = true\nwarm_start = false',
        'kind = "dflash"\nstate_entries = [1, 3]\nblock_size = 4\nown_layers = 2',
    ],
)
def test_training_lowers_the_loss(tmp_path: Path, files: ModelFiles, shard: Path, drafter: str) -> None:
    path = TrainingRun(load_fit_settings(configured(tmp_path, files, shard, drafter)), SilentProgress()).train()
    points = read_points(path.parent)
    assert points[-1]["total"] < 0.97 * points[0]["total"]
    checkpoint = load_checkpoint(path)
    assert checkpoint.config.kind == (drafter.split('"')[1] if "kind" in drafter else "moa")
    assert (checkpoint.config.lsa, checkpoint.config.ca) == ("kind" in drafter, "ca = " not in drafter)


def test_a_baseline_reuses_no_layers(tmp_path: Path, files: ModelFiles, shard: Path) -> None:
    with raises(
        ConfigError,
        snapshot(
            "In TMP/fit.toml: drafter.reused_layers is for moa drafters only, not for eagle2. training/configs has examples."
        ),
    ):
        load_fit_settings(configured(tmp_path, files, shard, 'kind = "eagle2"\nreused_layers = 1'))


def test_a_run_that_continues_is_of_the_same_kind(tmp_path: Path, files: ModelFiles, shard: Path) -> None:
    (tmp_path / "a").mkdir()
    begun = TrainingRun(
        load_fit_settings(configured(tmp_path / "a", files, shard, 'kind = "eagle2"', 200)), SilentProgress()
    )
    other = configured(tmp_path, files, shard, "reused_layers = 0", 200)
    settings = load_fit_settings(other, {"start_from": str(begun.train())})
    with raises(
        ConfigError,
        snapshot("drafter.kind is moa, but TMP/a/out/drafter.safetensors has eagle2. Set it to that drafter's own."),
    ):
        TrainingRun(settings, SilentProgress())


def test_the_projection_starts_near_what_the_layer_was_made_for(tmp_path: Path, files: ModelFiles, shard: Path) -> None:
    run = TrainingRun(load_fit_settings(configured(tmp_path, files, shard, 'kind = "eagle2"', 200)), SilentProgress())
    target, state = run._sample(run.config.target_layers - 1, 1000)
    assert isinstance(run.drafter, TrainingBaseline)
    near = run.drafter.spec_model_fc(torch.cat((target.embeddings, target.last_hidden.roll(1, 1)), -1))
    kept = target.positions > 0
    assert (near - state)[kept].square().mean() < 0.8 * state[kept].square().mean()
