"""A worker's tree and its cache, and what is said when an engine cannot be had."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from inline_snapshot import snapshot
from moa_bench.harness.workers import WorkerCommand, running_workers
from moa_bench.suites.engine.subjects import llama_subject, our_subjects
from moa_bench.suites.engine.worker import Worker, binary_tree
from moa_server.verifier.kernel_target import KernelTarget
from moa_shared.errors import ConfigError, UnavailableError
from moa_shared.programs.progress import SilentProgress

from tests.support.messages import raises

ECHO = """
import json, sys
print(json.dumps({"details": "echo"}), flush=True)
for line in sys.stdin:
    command = json.loads(line)
    print(json.dumps({"ms": command.get("read", 0) + command.get("forward", 0), "resident_mb": 5.0}), flush=True)
"""


def test_trees_are_binary() -> None:
    assert binary_tree(1) == [-1]
    assert binary_tree(6) == [-1, 0, 0, 1, 1, 2]


def test_a_forward_leaves_the_context_as_it_was(make_target: Callable[[], KernelTarget]) -> None:
    worker = Worker(make_target())
    assert worker.read(20) > 0
    assert worker.forward(8) > 0
    assert worker.forward(1) > 0
    assert worker._cache.length == 20
    worker.read(5)
    assert worker._cache.length == 5


def test_a_process_answers_line_by_line() -> None:
    subject = WorkerCommand("echo", (sys.executable, "-c", ECHO))
    with running_workers([subject], None, SilentProgress()) as workers:
        assert workers[0].details == "echo"
        assert workers[0].read(7) == 7.0
        assert workers[0].forward(3) == 3.0
        assert workers[0].resident_mb == 5.0
        assert 0 < workers[0].load_s < 60


def test_an_engine_that_does_not_start_is_named() -> None:
    subject = WorkerCommand("broken", (sys.executable, "-c", "raise SystemExit('no such file')"))
    with (
        pytest.raises(UnavailableError, match="broken has ended: no such file"),
        running_workers([subject], None, SilentProgress()),
    ):
        pass


def test_a_folder_without_llama_cpp_is_refused(tmp_path: Path) -> None:
    files = SimpleNamespace(weights=(Path("model.gguf"),), target_id="A target")
    with raises(
        ConfigError,
        snapshot(
            "llama.cpp cannot be measured: TMP/node_modules/node-llama-cpp is not there. Run npm install --prefix TMP node-llama-cpp, or leave out --llama-cpp."
        ),
    ):
        llama_subject(tmp_path, files)  # type: ignore[arg-type]


def test_only_a_gguf_file_goes_to_llama_cpp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/node")
    (tmp_path / "node_modules" / "node-llama-cpp").mkdir(parents=True)
    files = SimpleNamespace(weights=(Path("model.safetensors"),), target_id="A target")
    with raises(
        ConfigError, snapshot("llama.cpp cannot be measured: A target is not a GGUF file. Leave out --llama-cpp.")
    ):
        llama_subject(tmp_path, files)  # type: ignore[arg-type]
    files.weights = (Path("model.gguf"),)
    subject = llama_subject(tmp_path, files)  # type: ignore[arg-type]
    assert subject.command[-1] == "model.gguf"
    assert not subject.trees


@pytest.mark.parametrize(("flags", "count"), [(("avx2", "amx_bf16"), 3), (("avx2",), 2)])
def test_torch_without_amx_is_measured_where_there_is_amx(flags: tuple[str, ...], count: int) -> None:
    torches = [subject for subject in our_subjects("default", flags) if subject.name.startswith("torch")]
    assert len(torches) == count


def test_only_the_kernels_in_use_measure_a_large_model() -> None:
    (subject,) = our_subjects("default", ("amx_bf16",), is_sized=True)
    assert subject.name.startswith("kernels, ")
