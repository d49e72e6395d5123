import os
from pathlib import Path
from typing import Any

import pytest
from moa_kernels import variant_name
from moa_server.settings import ServerSettings
from moa_server.verifier import memory_check
from moa_server.verifier.execution_level import load_execution
from moa_server.verifier.memory_check import (
    MappedPages,
    SizedTarget,
    map_in_large_pages,
    mapped_pages,
    needed_memory,
    require_memory,
)
from moa_shared.errors import ConfigError
from moa_shared.models import ModelFiles, resolve
from moa_shared.models.storage.tensors import map_file
from moa_shared.programs.machine import FreeMemory
from moa_shared.programs.progress import Progress
from structlog.testing import capture_logs

from tests.support.tiny_models import HYBRID, save_tiny_model, save_tokenizer


@pytest.fixture
def files(tmp_path: Path) -> ModelFiles:
    return resolve(str(save_tiny_model(tmp_path / "tiny")), tmp_path / "cache")


def test_too_little_is_refused_with_the_figures_unless_the_operator_starts_all_the_same(files: ModelFiles) -> None:
    require_memory(files, ServerSettings(), "int8", FreeMemory(160_000_000))
    require_memory(files, ServerSettings(memory_check=False), "int8", FreeMemory(1))
    with pytest.raises(ConfigError, match="End other programs, or take a sm"):
        require_memory(files, ServerSettings(), "int8", FreeMemory(140_000_000))
    settings = ServerSettings(kv_bytes=2_000_000_000)
    with pytest.raises(ConfigError, match="GB can be had here, under a limit of"):
        require_memory(files, settings, "int8", FreeMemory(1_000_000_000, 4_000_000_000))


def test_states_that_do_not_fit_are_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    """There is room for the weights, the program, and all keys and values."""
    files = resolve(str(save_tiny_model(tmp_path / "tiny", HYBRID)), tmp_path / "cache")
    target, settings = SizedTarget(files.config, "int8"), ServerSettings()
    rows = (cache := target.new_cache()).most_nbytes(128, settings.draft_nodes)
    needed = needed_memory(files, "int8").total + rows
    assert rows > 2 * cache.page_nbytes + 3 * cache.checkpoint_nbytes
    require_memory(files, settings, "int8", FreeMemory(needed))
    with pytest.raises(ConfigError, match=r"kB for keys, values and recurrent states, 150\.0 MB for the program"):
        require_memory(files, settings, "int8", FreeMemory(needed - 1))


@pytest.fixture
def mixture(tmp_path: Path) -> ModelFiles:
    """A model of 3.9 MB, of which a token reads 1.1 MB."""
    from tests.support.families import tiny_mixture

    folder = tmp_path / "mixture"
    tiny_mixture("qwen 3", num_experts=64, moe_intermediate_size=96).save_pretrained(folder)
    save_tokenizer(folder)
    return resolve(str(folder), tmp_path / "cache")


@pytest.mark.torch
def test_of_experts_those_count_that_a_token_goes_to(mixture: ModelFiles) -> None:
    found = needed_memory(mixture, "int8")
    whole, least = found.total + 10_000_000, found.least + 10_000_000
    assert found.idle > found.weights // 2
    with capture_logs() as logs:
        require_memory(mixture, ServerSettings(), "int8", FreeMemory(whole))
    assert not logs
    with capture_logs() as logs:
        require_memory(mixture, ServerSettings(kv_bytes=10_000_000), "int8", FreeMemory(least))
    [warning] = logs
    assert warning["event"].startswith("memory does not hold all experts")
    assert (warning["weights_bytes"], warning["read_each_step_bytes"]) == (3897792, 313920)
    with pytest.raises(ConfigError, match="MB: the experts that one token goes to, and all else"):
        require_memory(mixture, ServerSettings(kv_bytes=10_000_000), "int8", FreeMemory(least - 1))


@pytest.mark.skipif(variant_name() == "numpy", reason="there are no kernels for this CPU")
@pytest.mark.parametrize("level", ["auto", "int8"])
def test_nothing_is_loaded_then(files: ModelFiles, level: Any, tmp_path: Path) -> None:
    settings = ServerSettings(execution=level, kv_bytes=10**15, cache_dir=tmp_path / "cache")
    with pytest.raises(ConfigError, match=r"tiny needs 1\.0 PB of memory"):
        load_execution(files, settings, Progress())
    assert not list(tmp_path.glob("cache/tiles/*"))


@pytest.mark.parametrize(
    ("before", "trial", "forgotten"),
    [
        (MappedPages(100, 6, 0), MappedPages(100, 90, 0), [100, 0]),
        (MappedPages(100, 6, 0), MappedPages(100, 6, 0), [100]),  # this system has no large pages for files
        (MappedPages(100, 6, 4), None, []),  # which another process maps
        (MappedPages(99, 6, 0), None, []),  # which is not worth it
        (MappedPages(100, 90, 0), None, []),
        (None, None, []),
    ],
)
def test_weights_in_small_pages_are_read_anew_where_that_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: MappedPages, trial: MappedPages, forgotten: list[int]
) -> None:
    told, asked = [before, trial, MappedPages(100, 80, 0)], list[int]()
    (path := tmp_path / "model.tiles").write_bytes(b"weights")
    monkeypatch.setattr(memory_check, "TRIAL_BYTES", 100)
    monkeypatch.setattr(memory_check, "mapped_pages", lambda _: told.pop(0))
    monkeypatch.setattr(os, "posix_fadvise", lambda file, at, size, advice: asked.append(size))
    mapped, share = map_in_large_pages(path, path.read_bytes)
    assert (mapped, asked) == (b"weights", forgotten)
    assert share == (0.8 if forgotten else before and before.large_share)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="this system does not say how files are mapped")
def test_pages_are_counted_of_the_files_that_are_mapped(tmp_path: Path) -> None:
    (path := tmp_path / "model.tiles").write_bytes(bytes(1 << 20))
    mapped = map_file(path)
    assert int(mapped.sum()) == 0
    found = mapped_pages(str(path))
    assert (found and found.nbytes, found and found.large_share) == (1 << 20, 0.0)
    assert (mapped_pages("no such file"), mapped_pages(str(path), 2**22 + 1)) == (None, None)
