from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from moa_shared.drafter.checkpoint import load_checkpoint
from moa_shared.errors import CheckpointError, ConfigError, MismatchError
from moa_shared.models import ModelFiles
from moa_shared.models.storage.tensors import map_tensors
from moa_shared.programs.progress import Progress
from moa_training.data.text import prepare
from moa_training.fit.fit import TrainingRun
from moa_training.fit.run_state import MasterWeights
from moa_training.report import read_points
from moa_training.settings import load_fit_settings
from moa_training.teacher.teacher import Teacher

from tests.support.tiny_training import tiny_files, write_conversations, write_fit_config

REUSED = "reused_layers = 1"  # of the drafter, where a test wants another one
STATES = [f"{kind}\nstate_entries = [1, 2, 4]" for kind in ('kind = "eagle3"', 'kind = "dflash"', "lsa = false")]
Begin = Callable[..., TrainingRun]


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory, files: ModelFiles) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    prepare(files, [write_conversations(folder / "in.jsonl", 60)], folder / "a.jsonl.zst", 64, Progress())
    return folder / "a.jsonl.zst"


@pytest.fixture
def begin(tmp_path: Path, files: ModelFiles, shard: Path) -> Begin:
    """Begins, or continues, the run of a folder; some words of its configuration may be others."""

    def begin(
        name: str = "run", tokens: int = 3000, changed: dict[str, str] | None = None, target: ModelFiles = files,
        text: Path = shard, **more: str,
    ) -> TrainingRun:  # fmt: skip
        (tmp_path / name).mkdir(exist_ok=True)
        path = write_fit_config(tmp_path / name, target.folder, text, tokens=tokens)
        for old, new in (changed or {}).items():
            assert old in path.read_text()
            path.write_text(path.read_text().replace(old, new))
        path.write_text("".join(f'{key} = "{value}"\n' for key, value in more.items()) + path.read_text())
        return TrainingRun(load_fit_settings(path), Progress())

    return begin


@pytest.mark.parametrize("dtype", ["float32", "bf16"])
def test_training_lowers_the_loss_and_leaves_a_whole_checkpoint(
    tmp_path: Path, files: ModelFiles, begin: Begin, dtype: str
) -> None:
    path = begin(tokens=12000, changed={'dtype = "float32"': f'dtype = "{dtype}"'}).train()
    assert map_tensors(path)["Ekv2E.weight"].dtype == "BF16"
    points = read_points(path.parent)
    assert points[-1]["cross_entropy"] < 0.88 * points[0]["cross_entropy"]
    assert points[-1]["agreement"] > points[0]["agreement"]
    assert points[-1]["tokens"] >= 12000
    assert {"step", "tokens", "seconds", "learning_rate", "feature", "state", "agreement", "total"} <= set(points[0])
    checkpoint = load_checkpoint(path)
    assert (checkpoint.config.target_fingerprint, checkpoint.config.reused_layers) == (files.fingerprint, 1)
    assert checkpoint.tensors["draft_ids"].shape == (48,)
    assert (path.parent / "curves.png").read_bytes()[:4] == b"\x89PNG"
    card = (path.parent / "README.md").read_text()
    assert f"{int(points[-1]['tokens']):,}" in card
    assert str(tmp_path) not in card


@pytest.mark.parametrize("drafter", [
    'kind = "eagle2"\nwarm_start = false', 'kind = "independent"\nown_layers = 2', "lsa = false",
    "lsa = false\nreused_layers = 1", "lsa = false\nreused_layers = 1\nstate_entries = [1, 2, 3]",
    "ca = false\nreused_layers = 1", 'kind = "eagle3"\nstate_entries = [1, 2, 3]',
    'kind = "eagle3"\nstate_entries = [1, 2, 3]\neagle31 = true\nwarm_start = false',
    'kind = "dflash"\nstate_entries = [1, 3]\nblock_size = 4\nown_layers = 2',
])  # fmt: skip
def test_each_kind_learns(begin: Begin, drafter: str) -> None:
    path = begin(tokens=8000, changed={REUSED: drafter}).train()
    points = read_points(path.parent)
    assert points[-1]["total"] < 0.97 * points[0]["total"]
    checkpoint = load_checkpoint(path)
    assert checkpoint.config.kind == (drafter.split('"')[1] if "kind" in drafter else "moa")
    assert (checkpoint.config.lsa, checkpoint.config.ca) == ("kind" in drafter, "ca = " not in drafter)


@pytest.mark.parametrize("changed", [
    {}, {REUSED: "reused_layers = 0"}, {"[blocks]": "[blocks]\nbounded = false"},
    {"[blocks]": "[blocks]\nown_text = 1"}, *({REUSED: states} for states in STATES),
])  # fmt: skip
def test_a_killed_run_continues_as_it_would_have(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, changed: dict[str, str]
) -> None:
    changed = {**changed, "report_steps = 2": "report_steps = 5"}  # a checkpoint after a report draws curves
    straight = load_checkpoint(begin("straight", 1200, changed).train())
    changed["checkpoint_minutes = 1000.0"] = "checkpoint_minutes = 0.0"  # a checkpoint after each update
    real_step, done = MasterWeights.step, 0

    def killed(self: MasterWeights, rate: float) -> float:
        nonlocal done
        done += 1
        if done == 6:
            raise KeyboardInterrupt
        return real_step(self, rate)

    monkeypatch.setattr(MasterWeights, "step", killed)
    with pytest.raises(KeyboardInterrupt):
        begin("killed", 1200, changed).train()
    path = begin("killed", 1200, changed).train()
    resumed = load_checkpoint(path)
    for name, tensor in straight.tensors.items():
        assert np.array_equal(tensor, resumed.tensors[name]), name
    steps = [point["step"] for point in read_points(path.parent)]
    assert steps == sorted(set(steps))


def test_another_target_tokenizer_kind_or_run_is_refused(tmp_path: Path, begin: Begin) -> None:
    path = begin("one", 500).train()
    other = tiny_files(tmp_path / "other", tmp_path / "cache", seed=2)
    with pytest.raises(CheckpointError, match="belongs to a run with other settings or data"):
        begin("one", target=other)
    with pytest.raises(MismatchError, match="was made for another target"):
        begin("two", target=other, start_from=str(path))
    words = ["<unk>", "user", "assistant", "system", "<end>", *(f"x{index}" for index in range(91))]
    with pytest.raises(MismatchError, match="was made with another tokenizer"):
        begin("three", target=tiny_files(tmp_path / "foreign", tmp_path / "cache", words=words))
    with pytest.raises(ConfigError, match=r"drafter.kind is eagle2, but .*/drafter.safetensors has moa"):
        begin("four", changed={REUSED: 'kind = "eagle2"'}, start_from=str(path))


def test_training_continues_from_a_finished_drafter(begin: Begin) -> None:
    path = begin("one", 6000).train()
    first = read_points(path.parent)
    second = read_points(begin("two", 600, start_from=str(path)).train().parent)
    learned = first[0]["cross_entropy"] - first[-1]["cross_entropy"]
    assert second[0]["cross_entropy"] < first[0]["cross_entropy"] - learned / 3


@pytest.mark.parametrize("drafter", [REUSED, 'kind = "eagle2"', *STATES])
def test_a_first_run_on_the_kernels_trains(begin: Begin, drafter: str) -> None:
    path = begin(tokens=600, changed={REUSED: drafter}, execution="int8").train()
    assert all(np.isfinite(point["cross_entropy"]) for point in read_points(path.parent))


def test_a_warm_start_reads_no_text_twice(
    tmp_path: Path, files: ModelFiles, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, run_packed = tmp_path / "few.jsonl.zst", Mock(wraps=Teacher.run_packed)
    prepare(files, [write_conversations(tmp_path / "in.jsonl", 12)], few, 64, Progress())
    monkeypatch.setattr(Teacher, "run_packed", run_packed)
    begin(changed={REUSED: STATES[0]}, text=few)
    rows = [tuple(row) for call in run_packed.call_args_list for row in call.args[1].ids.tolist()]
    assert len(rows) == len(set(rows)) > 2


def test_a_drafter_may_read_the_memory_of_another(tmp_path: Path, begin: Begin) -> None:
    first = begin("first", 600).train()
    reads = {REUSED: f'reused_layers = 2\nmemory_of = "{first.parent}"'}
    path = begin("second", 1500, reads).train()
    one, second = load_checkpoint(first), load_checkpoint(path)
    assert (second.memory_fingerprint, second.config.reused_layers) == (one.memory_fingerprint, 2)
    card = (path.parent / "README.md").read_text()
    assert '"memory_of": "out"' in card
    assert str(tmp_path) not in card
    name = "cross_attention.self_attn.q_proj.weight"
    assert not np.array_equal(second.tensors[name], one.tensors[name])
    again = load_checkpoint(begin("second", 2000, reads).train())
    assert again.memory_fingerprint == one.memory_fingerprint
    with pytest.raises(ConfigError, match=r"drafter.lsa_mlp is 16, but .*, whose memory is to be read, has 32"):
        begin("third", 2000, {**reads, "lsa_mlp = 32": "lsa_mlp = 16"})
