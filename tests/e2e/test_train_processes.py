"""Training in two processes on a CPU, by torchrun and as on two nodes: what one process would learn with the rows of both."""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from moa_shared.drafter.checkpoint import DRAFTER_FILE, load_checkpoint
from moa_shared.programs.progress import Progress
from moa_training.data.text import prepare
from moa_training.fit.fit import TrainingRun
from moa_training.fit.run_state import NAME as STATE
from moa_training.report import read_points
from moa_training.settings import load_fit_settings

from tests.support.programs import environment, free_port, module, started
from tests.support.tiny_training import tiny_files, write_conversations, write_fit_config

pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("torch programs")]

LOSSES = ("total", "cross_entropy", "feature", "state", "agreement", "gradient_norm", "tokens")


def variables(cache: Path) -> dict[str, str]:
    return environment("proto", "shared", "kernels", "training", ACCELERATE_USE_CPU="1", MOA_CACHE_DIR=str(cache))


def start_by_torchrun(config: Path, cache: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2",
         "-m", "moa_training.cli", "fit", str(config)],
        env=variables(cache), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def train_on_two_nodes(config: Path, cache: Path) -> tuple[str, str]:
    """Trains to the end, in processes that know each other by the variables of torch: what they print and report."""
    group = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(
                started(module("moa_training.cli", ["fit", str(config)]), {**variables(cache), **group, "RANK": rank})
            )
            for rank in ("0", "1")
        ]
        ends = [node.end() for node in nodes]
        out, errors = "".join(out for _, out, _ in ends), "".join(errors for *_, errors in ends)
        assert [code for code, *_ in ends] == [0, 0], errors[-3000:]
    return out, errors


def require_same_training(folder: Path, other: Path) -> None:
    """The same learning curve and weights, within what the order of float32 sums changes."""
    points, theirs = read_points(folder), read_points(other)
    assert len(points) == len(theirs) > 4
    for mine, yours in zip(points, theirs, strict=True):
        np.testing.assert_allclose([mine[n] for n in LOSSES], [yours[n] for n in LOSSES], rtol=2e-3, atol=2e-4)
    tensors, others = load_checkpoint(folder / DRAFTER_FILE).tensors, load_checkpoint(other / DRAFTER_FILE).tensors
    assert tensors.keys() == others.keys()
    for name, tensor in tensors.items():
        np.testing.assert_allclose(
            tensor.astype(np.float32), others[name].astype(np.float32), atol=2e-3, rtol=0.02, err_msg=name
        )


@pytest.mark.long
@pytest.mark.timeout(300)
def test_two_processes_learn_what_one_would_though_they_are_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = tiny_files(tmp_path / "target", tmp_path / "cache")
    monkeypatch.setenv("MOA_CACHE_DIR", str(tmp_path / "cache"))
    shard = tmp_path / "a.jsonl.zst"
    prepare(files, [write_conversations(tmp_path / "in.jsonl", 60)], shard, 64, Progress())
    folders = two, one, continued = [tmp_path / name for name in ("two", "one", "continued")]
    for folder in folders:
        folder.mkdir()
        path = write_fit_config(folder, files.folder, shard)
        text = path.read_text().replace("report_steps = 2", "report_steps = 1")  # no mean over what was lost
        if folder == two:
            text = text.replace("checkpoint_minutes = 1000.0", "checkpoint_minutes = 0.0")
        else:
            text = text.replace("batch_rows = 2", "batch_rows = 4")
        path.write_text(text)
    TrainingRun(load_fit_settings(one / "fit.toml"), Progress()).train()

    with start_by_torchrun(two / "fit.toml", tmp_path / "cache") as interrupted:
        assert interrupted.stderr is not None
        assert any("training: 25 %" in line for line in interrupted.stderr)
        os.killpg(interrupted.pid, signal.SIGINT)
        assert "Traceback" not in interrupted.stderr.read().rpartition("Stopped.")[0]  # ends when both have ended
    assert interrupted.returncode != 0
    assert not (two / "out" / "README.md.partial").exists()
    assert (two / "out" / STATE).is_file()
    shutil.copytree(two / "out", continued / "out")

    out, errors = train_on_two_nodes(two / "fit.toml", tmp_path / "cache")
    assert "Going on from update" in errors
    assert out.count(DRAFTER_FILE) == 1  # one of them writes and speaks
    assert "Warning" not in errors
    require_same_training(two / "out", one / "out")

    TrainingRun(load_fit_settings(continued / "fit.toml"), Progress()).train()  # on one node what two have begun
    require_same_training(continued / "out", one / "out")
