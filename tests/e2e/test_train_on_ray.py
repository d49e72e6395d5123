"""`prepare --rewrite` and `evaluate` on a Ray cluster that loses a worker: the bytes of one machine."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from click.testing import CliRunner
from moa_training.cli import cli

from tests.support.programs import CHECKOUT, environment
from tests.support.tiny_training import save_tiny_target, write_conversations


@pytest.fixture
def ray_folder() -> Iterator[str]:
    """A folder whose name is short enough for Ray's sockets."""
    with TemporaryDirectory(prefix="moa-ray-", dir="/tmp") as folder:
        yield folder


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("ray")  # two clusters that start at once may not get up in the time that Ray gives them
def test_a_worker_that_dies_leaves_no_trace(tmp_path: Path, ray_folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = save_tiny_target(tmp_path / "target")
    source, questions = write_conversations(tmp_path / "in.jsonl", 40), tmp_path / "q.jsonl"
    questions.write_text("".join(json.dumps({"turns": [f"w{n} w{n + 1} w{n}"]}) + "\n" for n in range(20)))
    done = subprocess.run(
        [sys.executable, str(CHECKOUT / "tests" / "e2e" / "train_on_ray.py"),
         str(tmp_path), str(source), str(questions)],
        env=environment("proto", "shared", "kernels", "training", RAY_TMPDIR=ray_folder, RAY_worker_niceness="0",
                        MOA_CACHE_DIR=str(tmp_path / "cache of the cluster")),
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "died").is_file()
    monkeypatch.setenv("MOA_CACHE_DIR", str(tmp_path / "cache"))
    alone = tmp_path / "alone.jsonl.zst"
    arguments = ["prepare", str(source), "--output", str(alone), "--rewrite", "--target", str(target)]
    arguments += ["--prompt-tokens", "14", "--answer-tokens", "10", "--slots", "6", "--part-answers", "7"]
    CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert alone.read_bytes() == (tmp_path / "answers.jsonl.zst").read_bytes()
    arguments = ["evaluate", "lookup", str(questions), "--json", str(tmp_path / "alone.json"), "--target", str(target)]
    arguments += ["--answer-tokens", "8", "--alone", "4", "--execution", "bf16"]
    CliRunner().invoke(cli, arguments, catch_exceptions=False)
    texts = [(tmp_path / name).read_text().splitlines() for name in ("alone.json", "evaluation.json")]
    ours, clusters = ([line for line in text if "draft_ms" not in line] for text in texts)
    assert ours == clusters
    assert len(ours) == len(texts[0]) - 1  # all but one line, which is a time
