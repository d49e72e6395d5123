"""Which variant is taken, from folders that hold none, some or broken libraries; and what errors say."""

from __future__ import annotations

import functools
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from inline_snapshot import snapshot
from moa_kernels import Linear, library, quantised
from moa_kernels.formats import KernelError
from moa_kernels.variants import LIBRARIES, PROBE, VARIANTS, library_file, variants_of

from tests.support.messages import raises

HERE = variants_of(platform.machine())
needs_libraries = pytest.mark.skipif(
    not library.present(LIBRARIES), reason="no kernels are compiled here (make kernels)"
)


@pytest.fixture(autouse=True)
def fresh_choice(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(library.VARIANT_VARIABLE, raising=False)
    monkeypatch.delenv(library.FOLDER_VARIABLE, raising=False)
    library.choose.cache_clear()
    library.probe.cache_clear()
    yield
    library.choose.cache_clear()
    library.probe.cache_clear()


def folder_with(folder: Path, *names: str) -> Path:
    """Copies compiled libraries into a folder."""
    for name in names:
        shutil.copy(LIBRARIES / library_file(name), folder)
    return folder


def runnable() -> list[str]:
    return [variant.name for variant in HERE if library.probe(LIBRARIES) & variant.bit]


@needs_libraries
def test_the_fastest_that_runs_is_taken() -> None:
    fastest = next(name for name in runnable() if name in library.present(LIBRARIES))
    assert library.variant_name() == fastest
    assert library.explain().startswith(f"Kernels: {fastest} (")
    assert library.library() is library.library()


@needs_libraries
def test_a_faster_one_that_was_not_compiled_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if len(runnable()) < 2:
        pytest.skip("this CPU runs one variant alone")
    slowest = runnable()[-1]
    monkeypatch.setenv(library.FOLDER_VARIABLE, str(folder_with(tmp_path, PROBE, slowest)))
    assert library.variant_name() == slowest
    assert f"{runnable()[0]} would be faster, but was left out" in library.explain()


@needs_libraries
def test_a_variant_can_be_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in runnable():
        monkeypatch.setenv(library.VARIANT_VARIABLE, name)
        assert library.variant_name() == name
        assert library.explain().endswith("because MOA_KERNELS says so.")
        assert Linear([quantised(np.eye(32, dtype=np.float32))])(np.ones((1, 32), np.float32)).shape == (1, 32)


def test_numpy_can_be_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library.VARIANT_VARIABLE, "numpy")
    assert library.library() is None
    assert library.variant_name() == "numpy"
    assert library.explain() == ("Kernels: numpy, many times slower than compiled ones, because MOA_KERNELS says so.")


def test_an_installation_without_libraries_computes_by_numpy_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(library.FOLDER_VARIABLE, str(tmp_path))
    assert library.library() is None
    assert "many times slower" in library.explain()
    if HERE:
        assert "none were compiled when moa was installed" in library.explain()


def test_other_processors_compute_by_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert library.library() is None
    assert library.explain().endswith("because there are none for riscv64 processors.")


@needs_libraries
def test_an_old_cpu_computes_by_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "probe", probe_of(0))
    assert library.library() is None
    fastest = next(variant for variant in HERE if variant.name in library.present(LIBRARIES))
    assert f"lacks {fastest.instructions}" in library.explain()


def probe_of(bits: int) -> Callable[[Path], int]:
    return functools.cache(lambda folder: bits)


@needs_libraries
def test_errors_of_forced_variants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = next(variant.name for variant in VARIANTS if variant not in HERE)
    monkeypatch.setenv(library.VARIANT_VARIABLE, "sse9")
    with raises(
        KernelError,
        snapshot(
            "MOA_KERNELS=sse9 names no kernels. Known are amx, avx512, avxvnni, avx2, neon, numpy; unset, the fastest is taken."
        ),
    ):
        library.library()
    monkeypatch.setenv(library.VARIANT_VARIABLE, foreign)
    with pytest.raises(KernelError, match=f"{foreign} is for other processors than this one"):
        library.library()
    monkeypatch.setenv(library.VARIANT_VARIABLE, HERE[-1].name)
    with monkeypatch.context() as patch:
        patch.setattr(library, "probe", probe_of(0))
        with pytest.raises(KernelError, match=f"lacks {HERE[-1].instructions}"):
            library.library()
    monkeypatch.setenv(library.FOLDER_VARIABLE, str(tmp_path))
    with pytest.raises(KernelError, match=r"does not exist\. There are: numpy\. Install moa again"):
        library.library()


@needs_libraries
def test_a_library_of_other_sources_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "source_hash", lambda: "0123456789abcdef")
    with pytest.raises(KernelError, match="was built from other C sources than those installed beside it"):
        library.library()


@needs_libraries
def test_a_file_that_is_no_library_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = runnable()[-1]
    folder_with(tmp_path, PROBE)
    (tmp_path / library_file(name)).write_bytes(b"half a library")
    monkeypatch.setenv(library.FOLDER_VARIABLE, str(tmp_path))
    with pytest.raises(KernelError, match="cannot be loaded"):
        library.library()


@needs_libraries
@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="only Linux lists the CPU's instructions in a file")
def test_the_probe_agrees_with_the_system() -> None:
    words = set(Path("/proc/cpuinfo").read_text().split())
    needed = {
        "avx2": {"avx2", "fma", "f16c"},
        "avxvnni": {"avx2", "avx_vnni"},
        "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"},
        "amx": {"avx512_vnni", "amx_tile", "amx_int8"},
        "neon": {"asimddp"},
    }
    assert runnable() == [variant.name for variant in HERE if needed[variant.name] <= words]


def test_the_command_says_what_is_used() -> None:
    command = [sys.executable, "-m", "moa_kernels"]
    environment = {"PYTHONPATH": str(LIBRARIES.parents[1])}
    said = subprocess.run(command, env={**environment, "MOA_KERNELS": "numpy"}, capture_output=True, text=True)
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.startswith("Kernels: numpy")
    refused = subprocess.run(command, env={**environment, "MOA_KERNELS": "sse9"}, capture_output=True, text=True)
    assert refused.returncode == 1
    assert refused.stderr.startswith("MOA_KERNELS=sse9 names no kernels.")
