from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import moa_training.fit.fit
import numpy as np
import pytest
from inline_snapshot import snapshot
from moa_shared.drafter import fresh_tensors, load_checkpoint, save_checkpoint
from moa_shared.errors import CheckpointError, ConfigError, DiskFullError, MismatchError
from moa_shared.models import ModelFiles
from moa_shared.models.tensors import map_tensors
from moa_shared.programs.progress import SilentProgress
from moa_training.data.batches import PackedBatch
from moa_training.data.text import prepare
from moa_training.fit.fit import TrainingRun
from moa_training.fit.run_state import MasterWeights
from moa_training.fit.setup import drafter_config
from moa_training.report import PICTURE, append_point, draw_curves, read_points
from moa_training.settings import FitSettings, load_fit_settings
from moa_training.teacher.teacher import Activations, Teacher

from tests.support.messages import raises
from tests.support.tiny_training import WORDS, save_tiny_target, tiny_files, write_conversations, write_fit_config
from tests.support.torch_models import torch_model

STATES = [f"{kind}\nstate_entries = [1, 2, 4]" for kind in ('kind = "eagle3"', 'kind = "dflash"', "lsa = false")]


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory, files: ModelFiles) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    prepare(files, [write_conversations(folder / "in.jsonl", 60)], folder / "a.jsonl.zst", 64, SilentProgress())
    return folder / "a.jsonl.zst"


def run(folder: Path, files: ModelFiles, shard: Path, extra: str = "", tokens: int = 3000) -> Path:
    folder.mkdir(exist_ok=True)
    return TrainingRun(
        load_fit_settings(write_fit_config(folder, files.folder, shard, extra, tokens)), SilentProgress()
    ).train()


def test_training_lowers_the_loss_and_leaves_a_whole_checkpoint(tmp_path: Path, files: ModelFiles, shard: Path) -> None:
    path = run(tmp_path, files, shard, tokens=12000)
    points = read_points(path.parent)
    assert points[-1]["cross_entropy"] < 0.88 * points[0]["cross_entropy"]
    assert points[-1]["agreement"] > points[0]["agreement"]
    assert points[-1]["tokens"] >= 12000
    assert {"step", "tokens", "seconds", "learning_rate", "feature", "state", "agreement", "total"} <= set(points[0])
    checkpoint = load_checkpoint(path)
    assert checkpoint.config.target_fingerprint == files.fingerprint
    assert checkpoint.config.reused_layers == 1
    assert checkpoint.tensors["draft_ids"].shape == (48,)
    assert (path.parent / "curves.png").read_bytes()[:4] == b"\x89PNG"
    card = (path.parent / "README.md").read_text()
    assert f"{int(points[-1]['tokens']):,}" in card
    assert str(tmp_path) not in card


@pytest.mark.parametrize(
    "options",
    [
        "",
        "[drafter]\nreused_layers = 0\n",
        "[blocks]\nbounded = false\n",
        "own text",
        *STATES,
    ],
)
def test_a_killed_run_continues_as_it_would_have(
    tmp_path: Path, files: ModelFiles, shard: Path, monkeypatch: pytest.MonkeyPatch, options: str
) -> None:
    def configured(folder: Path, minutes: str) -> Any:
        folder.mkdir(exist_ok=True)
        path = write_fit_config(folder, files.folder, shard, tokens=1200)
        text = path.read_text().replace("checkpoint_minutes = 1000.0", f"checkpoint_minutes = {minutes}")
        text = text.replace("report_steps = 2", "report_steps = 5")  # a checkpoint after a report draws curves
        if options.startswith("[drafter]"):
            text = text.replace("reused_layers = 1", "reused_layers = 0")
        elif options in STATES:
            text = text.replace("reused_layers = 1", options)
        elif options:
            text = text.replace(
                "[blocks]", f"[blocks]\n{'own_text = 1' if options == 'own text' else 'bounded = false'}"
            )
        path.write_text(text)
        return load_fit_settings(path)

    straight = load_checkpoint(TrainingRun(configured(tmp_path / "straight", "1000.0"), SilentProgress()).train())
    settings = configured(tmp_path / "killed", "0.0")  # a checkpoint after each update
    real_step, done = MasterWeights.step, 0

    def killed(self: MasterWeights, rate: float) -> float:
        nonlocal done
        done += 1
        if done == 6:
            raise KeyboardInterrupt
        return real_step(self, rate)

    monkeypatch.setattr(MasterWeights, "step", killed)
    with pytest.raises(KeyboardInterrupt):
        TrainingRun(settings, SilentProgress()).train()
    monkeypatch.setattr(MasterWeights, "step", real_step)
    resumed = load_checkpoint(TrainingRun(settings, SilentProgress()).train())
    for name, tensor in straight.tensors.items():
        assert np.array_equal(tensor, resumed.tensors[name]), name
    steps = [point["step"] for point in read_points(settings.output)]
    assert steps == sorted(set(steps))


def test_a_full_disk_keeps_the_last_checkpoint_and_training_continues_from_it(
    tmp_path: Path, files: ModelFiles, shard: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = run(tmp_path, files, shard, tokens=1500)
    before = path.read_bytes()

    def full(*_: Any) -> None:
        raise DiskFullError("The checkpoint cannot be written.")

    monkeypatch.setattr(moa_training.fit.fit, "save_checkpoint", full)
    with pytest.raises(DiskFullError):
        run(tmp_path, files, shard, tokens=3000)
    assert path.read_bytes() == before
    monkeypatch.undo()
    monkeypatch.setenv("MOA_CACHE_DIR", str(tmp_path / "cache"))
    run(tmp_path, files, shard, tokens=3000)
    assert read_points(path.parent)[-1]["tokens"] >= 3000


def test_another_target_tokenizer_or_run_is_refused(tmp_path: Path, files: ModelFiles, shard: Path) -> None:
    path = run(tmp_path / "one", files, shard, tokens=500)
    other = tiny_files(tmp_path / "other", tmp_path / "cache", seed=2)
    with raises(
        CheckpointError,
        snapshot(
            "The training state TMP/one/out/training_state.safetensors belongs to a run with other settings or data. Give this run another output folder, or delete that file to begin again."
        ),
    ):
        run(tmp_path / "one", other, shard)
    again = tmp_path / "two"
    again.mkdir()
    config = write_fit_config(again, other.folder, shard)
    config.write_text(f'start_from = "{path}"\n' + config.read_text())
    with raises(
        MismatchError,
        snapshot(
            "The drafter TMP/one/out/drafter.safetensors was made for another target (DIGEST, this one is DIGEST). Name the target that it was made for."
        ),
    ):
        TrainingRun(load_fit_settings(config), SilentProgress())
    words = ["<unk>", "user", "assistant", "system", "<end>", *(f"x{index}" for index in range(91))]
    foreign = tiny_files(tmp_path / "foreign", tmp_path / "cache", words=words)
    with raises(
        MismatchError,
        snapshot(
            "The shard TMP/a.jsonl.zst was made with another tokenizer (DIGEST, the target's is DIGEST). Prepare the text again with this target."
        ),
    ):
        run(tmp_path / "three", foreign, shard)


def test_a_run_continues_after_an_upgrade_that_adds_a_setting(tmp_path: Path, files: ModelFiles, shard: Path) -> None:
    class LaterSettings(FitSettings):
        another: bool = False

    def later(**values: Any) -> FitSettings:
        return LaterSettings(**dict(load_fit_settings(tmp_path / "fit.toml")), **values)

    run(tmp_path, files, shard, tokens=500)
    assert TrainingRun(later(), SilentProgress()).position.step > 0
    with raises(
        CheckpointError,
        snapshot(
            "The training state TMP/out/training_state.safetensors belongs to a run with other settings or data. Give this run another output folder, or delete that file to begin again."
        ),
    ):
        TrainingRun(later(another=True), SilentProgress())


def test_training_continues_from_a_finished_drafter(tmp_path: Path, files: ModelFiles, shard: Path) -> None:
    path = run(tmp_path / "one", files, shard, tokens=6000)
    again = tmp_path / "two"
    again.mkdir()
    config = write_fit_config(again, files.folder, shard, tokens=600)
    config.write_text(f'start_from = "{path}"\n' + config.read_text())
    TrainingRun(load_fit_settings(config), SilentProgress()).train()
    first, second = read_points(tmp_path / "one" / "out"), read_points(again / "out")
    learned = first[0]["cross_entropy"] - first[-1]["cross_entropy"]
    assert second[0]["cross_entropy"] < first[0]["cross_entropy"] - learned / 3


def test_bf16_trains_too(tmp_path: Path, files: ModelFiles, shard: Path) -> None:
    folder = tmp_path / "bf16"
    folder.mkdir()
    config = write_fit_config(folder, files.folder, shard, tokens=6000)
    config.write_text(config.read_text().replace('dtype = "float32"', 'dtype = "bf16"'))
    path = TrainingRun(load_fit_settings(config), SilentProgress()).train()
    points = read_points(path.parent)
    assert points[-1]["cross_entropy"] < 0.9 * points[0]["cross_entropy"]
    assert map_tensors(path)["Ekv2E.weight"].dtype == "BF16"


@pytest.mark.parametrize("drafter", ["reused_layers = 1", 'kind = "eagle2"', *STATES])
def test_a_first_run_on_the_kernels_trains(tmp_path: Path, shard: Path, drafter: str) -> None:
    target = save_tiny_target(tmp_path / "target")
    model = torch_model(num_hidden_layers=4, max_position_embeddings=256, eos_token_id=4, vocab_size=len(WORDS))
    model.save_pretrained(target)  # of sizes that the kernels take
    path = write_fit_config(tmp_path, target, shard, tokens=600)
    text = path.read_text().replace("[drafter]\nreused_layers = 1", f"[drafter]\n{drafter}")
    path.write_text(f'execution = "int8"\n{text}')
    settings = load_fit_settings(path)
    TrainingRun(settings, SilentProgress()).train()
    assert all(np.isfinite(point["cross_entropy"]) for point in read_points(settings.output))


def test_a_warm_start_reads_no_text_twice(tmp_path: Path, files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    shard, read = tmp_path / "few.jsonl.zst", list[list[int]]()
    prepare(files, [write_conversations(tmp_path / "in.jsonl", 12)], shard, 64, SilentProgress())
    path = write_fit_config(tmp_path, files.folder, shard)
    path.write_text(path.read_text().replace("reused_layers = 1", STATES[0]))
    real = Teacher.run_packed

    def counted(self: Teacher, batch: PackedBatch) -> Activations:
        read.extend(batch.ids.tolist())
        return real(self, batch)

    monkeypatch.setattr(Teacher, "run_packed", counted)
    TrainingRun(load_fit_settings(path), SilentProgress())
    assert len(read) == len({tuple(row) for row in read}) > 2


def test_curves_are_drawn_again_after_each_new_point(tmp_path: Path) -> None:
    point, picture = {"step": 1.0, "tokens": 1e6, "cross_entropy": 2.0, "agreement": 0.5}, tmp_path / PICTURE
    append_point(tmp_path, point)
    draw_curves(tmp_path)
    drawn = picture.read_bytes()
    picture.write_bytes(b"as it was")
    draw_curves(tmp_path)
    assert picture.read_bytes() == b"as it was"
    append_point(tmp_path, point | {"tokens": 2e6})
    draw_curves(tmp_path)
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert picture.read_bytes() != drawn


def test_a_drafter_may_read_the_memory_of_another(tmp_path: Path, files: ModelFiles, shard: Path) -> None:
    first = run(tmp_path / "first", files, shard, tokens=600)
    options = f'[drafter]\ndraft_vocab = 48\nlsa_mlp = 32\nreused_layers = 2\nmemory_of = "{first.parent}"\n'
    folder = tmp_path / "second"
    folder.mkdir()
    path = write_fit_config(folder, files.folder, shard, tokens=1500)
    text = path.read_text()
    start, end = text.index("[drafter]"), text.index("[blocks]")
    path.write_text(text[:start] + options + text[end:])
    second = load_checkpoint(TrainingRun(load_fit_settings(path), SilentProgress()).train())
    one = load_checkpoint(first)
    assert second.memory_fingerprint == one.memory_fingerprint
    assert second.config.reused_layers == 2
    card = (folder / "out" / "README.md").read_text()
    assert '"memory_of": "out"' in card
    assert str(tmp_path) not in card
    assert not np.array_equal(
        second.tensors["cross_attention.self_attn.q_proj.weight"],
        one.tensors["cross_attention.self_attn.q_proj.weight"],
    )
    resumed = path.read_text().replace("tokens = 1500", "tokens = 2000")
    path.write_text(resumed)
    again = load_checkpoint(TrainingRun(load_fit_settings(path), SilentProgress()).train())
    assert again.memory_fingerprint == one.memory_fingerprint
    path.write_text(resumed.replace("lsa_mlp = 32", "lsa_mlp = 16").replace('output = "out"', 'output = "other"'))
    with pytest.raises(ConfigError, match=r"drafter.lsa_mlp is 16, but .*, whose memory is to be read, has 32"):
        TrainingRun(load_fit_settings(path), SilentProgress())


def test_published_forms_that_are_only_served_are_refused(tmp_path: Path, files: ModelFiles, shard: Path) -> None:
    path = write_fit_config(tmp_path, files.folder, shard, tokens=100)
    path.write_text(path.read_text().replace("reused_layers = 1", 'kind = "dflash"\nstate_entries = [1, 2]'))
    config = drafter_config(load_fit_settings(path), files)
    other = dataclasses.replace(config, anchor_guesses=True, markov_rank=4)
    save_checkpoint(tmp_path / "dspark.safetensors", other, fresh_tensors(other, seed=1))
    with raises(
        ConfigError,
        snapshot(
            "TMP/dspark.safetensors is dflash of a form that is not trained here (markov_w1.weight). Leave start_from out."
        ),
    ):
        TrainingRun(load_fit_settings(path, {"start_from": str(tmp_path / "dspark.safetensors")}), SilentProgress())
