"""Which variant is taken, from folders that hold none, some or broken libraries; and what errors say."""

import functools
import platform
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from moa_kernels import Linear, library, quantised
from moa_kernels.bindings import KernelError
from moa_kernels.variants import LIBRARIES, PROBE, SOURCES, VARIANTS, library_file, source_hash, variants_of

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


@needs_libraries
@pytest.mark.parametrize("why", ["MOA_KERNELS says so", "none were compiled", "there are none for riscv64", "lacks"])
def test_numpy_computes_and_says_why(why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fastest = next(variant for variant in HERE if variant.name in library.present(LIBRARIES))
    if why == "MOA_KERNELS says so":
        monkeypatch.setenv(library.VARIANT_VARIABLE, "numpy")
    elif why == "none were compiled":
        monkeypatch.setenv(library.FOLDER_VARIABLE, str(tmp_path))
    elif why == "lacks":
        monkeypatch.setattr(library, "probe", probe_of(0))
        why = f"lacks {fastest.instructions}"
    else:
        monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert (library.library(), library.variant_name()) == (None, "numpy")
    assert library.explain().startswith("Kernels: numpy, many times slower than compiled ones, because")
    assert why in library.explain()


def probe_of(bits: int) -> Callable[[Path], int]:
    return functools.cache(lambda folder: bits)


@needs_libraries
def test_errors_of_forced_variants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = next(variant.name for variant in VARIANTS if variant not in HERE)
    known = "Known are amx, avx512, avxvnni, avx2, neon, numpy; unset, the fastest is taken."
    for forced, bits, folder, words in (
        ("sse9", 31, "", f"MOA_KERNELS=sse9 names no kernels. {known}"),
        (foreign, 31, "", f"{foreign} is for other processors than this one"),
        (HERE[-1].name, 0, "", f"lacks {HERE[-1].instructions}. Unset MOA_KERNELS to take what it can run."),
        (HERE[-1].name, 31, str(tmp_path), "does not exist. There are: numpy. Install moa again"),
    ):
        monkeypatch.setenv(library.VARIANT_VARIABLE, forced)
        monkeypatch.setenv(library.FOLDER_VARIABLE, folder)
        monkeypatch.setattr(library, "probe", probe_of(bits))
        with pytest.raises(KernelError, match=re.escape(words)):
            library.library()


@needs_libraries
def test_a_library_of_other_sources_or_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = runnable()[-1]
    with monkeypatch.context() as patch:
        patch.setattr(library, "source_hash", lambda: "0123456789abcdef")
        with pytest.raises(KernelError, match="was built from other C sources than those installed beside it"):
            library.library()
    library.choose.cache_clear()
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


def test_bits_are_those_of_the_probe() -> None:
    enum = re.search(r"enum \{ (AVX2 = .*) \};", (SOURCES / "probe.c").read_text())
    assert enum is not None
    in_c = {name.lower(): int(bit) for name, bit in re.findall(r"(\w+) = (\d+)", enum[1])}
    assert in_c == {variant.name: variant.bit for variant in VARIANTS}


def test_hash_follows_names_and_contents_of_sources(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text("int a;")
    first = source_hash(tmp_path)
    (tmp_path / "notes.txt").write_text("no source")
    assert source_hash(tmp_path) == first
    (tmp_path / "b.h").write_text("int b;")
    second = source_hash(tmp_path)
    (tmp_path / "b.h").write_text("int c;")
    third = source_hash(tmp_path)
    (tmp_path / "b.h").rename(tmp_path / "c.h")
    assert len({first, second, third, source_hash(tmp_path)}) == 4
