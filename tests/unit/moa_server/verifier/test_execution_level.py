import errno
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from moa_kernels import set_threads, threads, variant_name
from moa_kernels.library import VARIANT_VARIABLE
from moa_server.settings import ServerSettings
from moa_server.verifier import execution_level
from moa_server.verifier.execution_level import Execution, load_execution
from moa_server.verifier.group import Group
from moa_server.verifier.kernel_target import KernelTarget
from moa_server.verifier.torch_target import TorchTarget
from moa_shared.errors import ConfigError, ModelSourceError
from moa_shared.models import ModelFiles, resolve
from moa_shared.models.network import served
from moa_shared.programs.progress import SilentProgress
from safetensors.torch import load_file, save_file
from structlog.testing import capture_logs

from tests.support.tiny_models import save_tiny_model

pytestmark = pytest.mark.torch

HAS_KERNELS = variant_name() != "numpy"
needs_kernels = pytest.mark.skipif(not HAS_KERNELS, reason="there are no kernels for this CPU")
Load = Callable[..., tuple[Execution, list[Any]]]


@pytest.fixture(autouse=True)
def _same_threads() -> Iterator[None]:
    before = threads()
    yield
    set_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


def files_of(folder: Path, tmp_path: Path) -> ModelFiles:
    return resolve(str(folder), tmp_path / "cache")


@pytest.fixture
def load(folder: Path, tmp_path: Path) -> Load:
    """The execution of the tiny model (or another), and what was logged."""

    def run(level: Any = "auto", *, other: Path | None = None, **settings: Any) -> tuple[Execution, list[Any]]:
        files = files_of(other or folder, tmp_path)
        with capture_logs() as logs:
            # One thread: torch's number of them is the process's.
            loaded = load_execution(files, ServerSettings(execution=level, threads=1, **settings), SilentProgress())
        return loaded, logs

    return run


def warnings(logs: list[Any]) -> list[Any]:
    return [entry for entry in logs if entry["log_level"] == "warning"]


@needs_kernels
@pytest.mark.parametrize("level", ["auto", "int8"])
def test_the_kernels_are_taken_where_they_run(load: Load, level: str) -> None:
    loaded, logs = load(level)
    assert (loaded.level, loaded.exact) == ("int8", True)
    assert isinstance(loaded.target, KernelTarget)
    assert loaded.test is not None
    assert loaded.test.step_ms > 0
    assert loaded.described().level == "int8"
    assert variant_name() in loaded.described().details
    assert warnings(logs) == []
    [ready] = [entry for entry in logs if entry["event"] == "kernels ready"]
    assert ready["choice"].startswith("Kernels: ")


def test_without_kernels_auto_is_bf16_and_says_why(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIANT_VARIABLE, "numpy")
    loaded, logs = load()
    assert (loaded.level, loaded.exact, loaded.test) == ("bf16", False, None)
    assert isinstance(loaded.target, TorchTarget)
    first, second = warnings(logs)
    assert "not exact" in first["event"]
    assert "because MOA_KERNELS says so" in first["reason"]
    assert "a text may change with the drafts" in second["event"]


@pytest.mark.parametrize(
    ("variant", "level", "words"),
    [
        ("numpy", "int8", "The level int8 needs kernels. Kernels: numpy, many times slower than compiled ones"),
        ("sse2", "int8", "MOA_KERNELS=sse2 names no kernels. Known are amx, avx512"),
        ("sse2", "auto", "MOA_KERNELS=sse2 names no kernels. Known are amx, avx512"),
    ],
)
def test_kernels_that_cannot_be_had(
    load: Load, variant: str, level: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIANT_VARIABLE, variant)
    with pytest.raises(ConfigError, match=words) as caught:
        load(level)
    assert caught.value.hint == "Give --execution float32 or bf16, which torch computes."
    assert load("float32")[0].level == "float32"


@needs_kernels
@pytest.mark.parametrize("test", ["compare_tree", "compare_with_float32"])
def test_kernels_that_fail_the_test_at_the_start_are_not_used(
    load: Load, test: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = ConfigError("It does not compute.", hint="Report this.")
    monkeypatch.setattr(execution_level, test, Mock(side_effect=error))
    loaded, logs = load()
    assert loaded.level == "bf16"
    assert warnings(logs)[0]["reason"] == "It does not compute."
    with pytest.raises(ConfigError, match="It does not compute"):
        load("int8")


@needs_kernels
def test_floats_may_be_packed_in_4_bits(load: Load, tmp_path: Path) -> None:
    (eight, _), (four, logs) = load("int8"), load("int8", weights="q4", cache_dir=tmp_path / "own")
    assert warnings(logs) == []
    assert four.details == f"{eight.details}, weights in 4 bits"
    ends = frozenset({2})
    assert four.fingerprint(ends) != eight.fingerprint(ends)
    [tiles] = tmp_path.glob("own/tiles/*-q4_1.tiles")
    again, _ = load("int8", weights="q4", cache_dir=tmp_path / "own")
    assert again.fingerprint(ends) == four.fingerprint(ends)
    assert [*tmp_path.glob("own/tiles/*.tiles")] == [tiles]


@needs_kernels
def test_what_the_formats_of_a_file_mean_is_said(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    usual, _ = load("int8")
    monkeypatch.setattr(execution_level, "converted_formats", lambda *_: {"iq2_xs"})
    loaded, logs = load("int8", weights="q4")
    assert loaded.fingerprint(frozenset()) == usual.fingerprint(frozenset())
    unchanged, lacking = warnings(logs)
    assert unchanged["event"] == "--weights q4 changes nothing: the model has no weights in F16, BF16 or F32"
    assert lacking["event"].startswith("the kernels lack a format of the file: its weights are served in 8 bits")
    assert lacking["format"] == "IQ2_XS"


@needs_kernels
def test_a_disk_that_fills_is_said_and_weights_are_packed_in_memory(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(os, "posix_fallocate", Mock(side_effect=error))
    loaded, logs = load("int8", cache_dir=tmp_path / "full")
    assert loaded.level == "int8"
    [warning] = warnings(logs)
    assert warning["event"] == "packed weights are kept in memory, and packed again at the next start"
    assert warning["reason"] == f"The disk of {tmp_path}/full/tiles ran full while writing the file of packed weights."
    assert not list(tmp_path.glob("full/tiles/*.tiles"))


def test_without_torch_its_levels_are_refused(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "find_spec", lambda _: None)
    for level in ("float32", "bf16"):
        with pytest.raises(ConfigError, match="is computed by torch, which is not installed"):
            load(level)
    monkeypatch.setenv(VARIANT_VARIABLE, "numpy")
    with pytest.raises(ConfigError, match="This machine can run no level of execution"):
        load()


def test_cuda_is_refused_where_torch_sees_none_and_processes_do_not_share_int8(
    load: Load, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for level in ("auto", "float32", "bf16"):
        with pytest.raises(ConfigError, match="Torch sees no CUDA device"):
            load(level, device="cuda")
    with pytest.raises(ConfigError, match="is computed in one process: its kernels do not"):
        load_execution(files_of(folder, tmp_path), ServerSettings(), SilentProgress(), cast(Group, object()))


def test_torch_on_a_cpu_says_what_computes_and_keeps_to_the_bytes_given(load: Load) -> None:
    loaded, _ = load("bf16", device="cpu", kv_bytes=10_000_000)
    assert loaded.details.endswith("on CPU, scaled_dot_product_attention, 1 threads")
    assert 0 < loaded.target.kv_bytes() <= 10_000_000


@needs_kernels
@pytest.mark.parametrize("level", ["auto", "int8"])
def test_weights_that_are_no_numbers_are_refused_by_name(load: Load, folder: Path, tmp_path: Path, level: str) -> None:
    other = Path(shutil.copytree(folder, tmp_path / "broken"))
    tensors = load_file(other / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = float("nan")
    save_file(tensors, other / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelSourceError, match="weight of broken holds numbers that are not finite"):
        load(level, other=other)


@needs_kernels
def test_keys_and_values_of_8_bits_take_half_the_bytes_and_are_exact(load: Load) -> None:
    whole, halved = (load("int8", kv=kv)[0] for kv in ("f16", "q8"))
    assert halved.exact
    assert "keys and values as q8" in halved.described().details
    tokens, target = [3, 1, 4, 1, 5, 9, 2, 6], halved.target
    row = cast(KernelTarget, target).network.stack.shape.head_dim
    assert target.new_cache().most_nbytes(64) == whole.target.new_cache().most_nbytes(64) * (row + 4) / (2 * row)
    together = target.forward(target.new_cache(), tokens).logits
    cache = target.new_cache()
    alone = [target.forward(cache, [token]).logits[0] for token in tokens]
    assert np.array_equal(together, alone)
    assert not np.array_equal(together, whole.target.forward(whole.target.new_cache(), tokens).logits)
    with pytest.raises(ConfigError, match="does not keep keys and values as q"):
        load("float32", kv="q8")


@needs_kernels
def test_the_fingerprint_is_of_all_that_decides_a_text(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = frozenset({2, 7})
    first = load("int8")[0]
    fingerprint = first.fingerprint(ends)
    assert len(fingerprint) == 32
    assert load("auto")[0].fingerprint(frozenset({7, 2})) == fingerprint
    assert load("int8", context_length=128)[0].fingerprint(ends) == fingerprint  # as long as it was trained for
    others = [
        first.fingerprint(frozenset({2})),
        load("int8", context_length=100)[0].fingerprint(ends),
        load("float32")[0].fingerprint(ends),
        load("bf16")[0].fingerprint(ends),
        load("int8", kv="q8")[0].fingerprint(ends),
    ]
    monkeypatch.setattr(execution_level, "ARITHMETIC", 99)
    others.append(first.fingerprint(ends))
    monkeypatch.setattr(execution_level, "version", lambda _: "0.1")
    others.append(load("float32")[0].fingerprint(ends))
    others.append(replace(load("float32")[0], shares=2).fingerprint(ends))
    assert len({fingerprint, *others}) == 9
