"""Which level is computed, by what, and what its fingerprint says; what cannot be served is refused alike everywhere."""

import errno
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from moa_kernels import set_threads, threads, variant_name
from moa_kernels.library import VARIANT_VARIABLE
from moa_server.capacity import plan_capacity
from moa_server.doctor import MachineExamination
from moa_server.settings import ServerSettings
from moa_server.verifier import execution_level
from moa_server.verifier.execution_level import Execution, choose_level, load_execution
from moa_server.verifier.group import Group
from moa_server.verifier.kernel_target import KernelTarget
from moa_server.verifier.torch_target import TorchTarget
from moa_shared.errors import ConfigError, MoaError, ModelSourceError
from moa_shared.models import ModelFiles, resolve
from moa_shared.models.network import served
from moa_shared.models.source import LocalModel, examine
from moa_shared.programs.progress import Progress
from structlog.testing import capture_logs
from transformers import PreTrainedModel

from tests.support.families import tiny_dense, tiny_mixture
from tests.support.family_gguf import write_family_gguf
from tests.support.tiny_models import save_tiny_model, save_tokenizer
from tests.support.torch_models import torch_model

pytestmark = pytest.mark.torch

needs_kernels = pytest.mark.skipif(variant_name() == "numpy", reason="there are no kernels for this CPU")
Load = Callable[..., tuple[Execution, list[Any]]]
QWEN_3, MIXTRAL = partial(torch_model, "qwen3"), partial(tiny_mixture, "mixtral")
GEMMA, MINISTRAL = partial(tiny_dense, "gemma 2"), partial(tiny_dense, "ministral")


@pytest.fixture(autouse=True)
def _same_threads_and_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("MOA_CACHE_DIR", str(tmp_path / "cache"))
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
            loaded = load_execution(files, ServerSettings(execution=level, threads=1, **settings), Progress())
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
    assert ready["weights_in_large_pages"] in (0.0, None)  # of a file that is smaller than one; None: not Linux


def test_without_kernels_auto_is_bf16_and_says_why(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIANT_VARIABLE, "numpy")
    loaded, logs = load(device="cpu", kv_bytes=10_000_000)
    assert (loaded.level, loaded.exact, loaded.test) == ("bf16", False, None)
    assert isinstance(loaded.target, TorchTarget)
    assert loaded.details.endswith("on CPU, scaled_dot_product_attention, 1 threads")
    assert 0 < loaded.target.kv_bytes() <= 10_000_000
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
    assert four.fingerprint(frozenset()) != eight.fingerprint(frozenset())
    [_] = tmp_path.glob("own/tiles/*-q4_1.tiles")


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
        load_execution(files_of(folder, tmp_path), ServerSettings(), Progress(), cast(Group, object()))


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
    others = [first.fingerprint(frozenset({2}))]
    for level, more in (("int8", {"context_length": 100}), ("float32", {}), ("bf16", {}), ("int8", {"kv": "q8"})):
        others.append(load(level, **more)[0].fingerprint(ends))
    monkeypatch.setattr(execution_level, "ARITHMETIC", 99)
    others.append(first.fingerprint(ends))
    monkeypatch.setattr(execution_level, "version", lambda _: "0.1")
    others.append(load("float32")[0].fingerprint(ends))
    others.append(replace(load("float32")[0], shares=2).fingerprint(ends))
    assert len({fingerprint, *others}) == 9


def save(model: PreTrainedModel, folder: Path, changes: dict[str, Any]) -> Path:
    model.save_pretrained(folder)
    save_tokenizer(folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


def assert_all_refuse(path: Path) -> str:
    """What all of them say."""
    settings = ServerSettings(model=str(path), drafter="none", threads=1)
    listed = examine(LocalModel("tiny", "folder", path)).refusal
    files = resolve(str(path))
    examined = next(iter(MachineExamination(settings, Progress(), lambda _: None).run()))
    assert examined.state == "fail"
    told = {str(listed), f"{examined.message}. {examined.hint}"}
    for ask in (partial(load_execution, files, settings), partial(plan_capacity, settings, 10**10)):
        with pytest.raises(MoaError) as caught:
            ask(Progress())
        told.add(str(caught.value))
    [one] = told
    return one


@needs_kernels
@pytest.mark.parametrize(
    ("make", "changes", "words"),
    [
        (QWEN_3, {"rope_parameters": {"rope_type": "new", "rope_theta": 1e4}}, "'new'} cannot be used"),
        (GEMMA, {"rope_parameters": {"rope_type": "yarn"}}, "'yarn'} cannot be used"),
        (MINISTRAL, {"head_dim": 48}, "The head dimension is 48, which is no multiple of 32."),
        (MIXTRAL, {"rms_norm_eps": None}, "The configuration does not set rms_norm_eps."),
        (MIXTRAL, {"intermediate_size": 40}, "The MLP width is 40, which is no multiple of 32."),
    ],
)
def test_what_no_level_computes_is_refused_alike_everywhere(
    make: Callable[[], PreTrainedModel], changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    assert words in assert_all_refuse(save(make(), tmp_path / "tiny", changes))


@needs_kernels
@pytest.mark.parametrize("changes", [{"head_dim": 48}, {"intermediate_size": 40}])
def test_what_torch_alone_computes_is_served_where_torch_is(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(torch_model("qwen3", **changes), tmp_path / "tiny", {})
    assert examine(LocalModel("tiny", "folder", folder)).refusal is None
    config = resolve(str(folder)).config
    level, reason = choose_level(ServerSettings(), config, "tiny")
    assert level == "bf16"
    assert reason.startswith("The int8 kernels do not compute this target: ")
    assert load_execution(resolve(str(folder)), ServerSettings(threads=1), Progress()).level == "bf16"
    assert choose_level(ServerSettings(execution="float32"), config, "tiny") == ("float32", "")
    with pytest.raises(ModelSourceError, match="which torch computes"):
        choose_level(ServerSettings(execution="int8"), config, "tiny")
    monkeypatch.setattr(served, "find_spec", lambda _: None)
    assert assert_all_refuse(folder).startswith(reason)


@needs_kernels
def test_levels_that_do_not_compute_a_family_or_a_file(tmp_path: Path) -> None:
    path = write_family_gguf(tiny_dense("ministral 3", intermediate_size=48), tmp_path / "tiny.gguf")
    assert "The MLP width is 48, which is no multiple of 32. Choose another model" in assert_all_refuse(path)
    config = tiny_mixture("mixtral").config.to_dict()
    with pytest.raises(ModelSourceError, match="tiny is of the family mixtral, which the torch"):
        choose_level(ServerSettings(execution="bf16"), config, "tiny")
    with pytest.raises(ConfigError, match="is computed on CPUs only"):
        choose_level(ServerSettings(execution="int8", device="cuda"), config, "tiny")
