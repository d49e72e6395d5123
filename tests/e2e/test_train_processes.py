"""Training in two processes on a CPU: `accelerate` averages the gradients, one of them writes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from moa_shared.drafter import load_checkpoint
from moa_shared.programs.progress import SilentProgress
from moa_training.data.prepare import prepare

from tests.support.programs import environment
from tests.support.tiny_training import tiny_files, write_conversations, write_fit_config


@pytest.mark.long
@pytest.mark.timeout(180)
def test_two_processes_share_the_tokens_and_write_once(tmp_path: Path) -> None:
    files = tiny_files(tmp_path / "target", tmp_path / "cache")
    shard = tmp_path / "a.jsonl.zst"
    prepare(files, [write_conversations(tmp_path / "in.jsonl", 60)], shard, 64, SilentProgress())
    config = write_fit_config(tmp_path, files.folder, shard)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2",
         "-m", "moa_training.cli", "fit", str(config)],
        env=environment("proto", "shared", "training", ACCELERATE_USE_CPU="1", MOA_CACHE_DIR=str(tmp_path / "cache")),
        capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("drafter.safetensors") == 1
    last = json.loads((tmp_path / "out" / "curves.jsonl").read_text().splitlines()[-1])
    per_update = last["tokens"] / last["step"]
    assert 1.5 * 128 < per_update <= 2 * 128  # two processes of two rows of 64 tokens
    assert load_checkpoint(tmp_path / "out" / "drafter.safetensors").config.target_fingerprint == files.fingerprint
