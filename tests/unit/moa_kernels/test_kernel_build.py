"""The build, with compilers that are shell scripts: which is taken, and what is left out when it refuses."""

import importlib.util
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import kernel_build
import pytest
from moa_kernels.variants import PROBE, library_file

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the compilers of these tests are shell scripts")
X86 = ("amx", "avx512", "avxvnni", "avx2")


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that is all of PATH; no CC, no ziglang, and an x86-64 machine."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for needed in ("sh", "touch"):
        (folder / needed).symlink_to(str(shutil.which(needed)))
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(kernel_build, "machine", lambda: "x86_64")
    kernel_build.find_compiler.cache_clear()
    yield folder
    kernel_build.find_compiler.cache_clear()


def write_compiler(path: Path, refuses: str = "nothing-at-all") -> None:
    """A compiler that makes an empty output, unless an argument contains `refuses`."""
    path.write_text(
        '#!/bin/sh\nfor word in "$@"; do\n'
        f'  case "$word" in *{refuses}*) echo "what is $word" >&2; exit 1;; esac\n'
        '  [ "$before" != -o ] || touch "$word"\n  before=$word\ndone\n'
    )
    path.chmod(0o755)


def found() -> str | None:
    compiler = kernel_build.find_compiler()
    return None if compiler is None else compiler.command[0]


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_first_compiler_that_works_is_taken(
    commands: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_compiler(commands / "cc", refuses="-shared")
    write_compiler(commands / "clang")
    write_compiler(commands / "icc")
    monkeypatch.setenv("CC", "no-such-compiler")
    assert found() == "clang"
    said = capsys.readouterr().err
    for name in ("no-such-compiler", "cc"):
        assert f"{name} cannot build a shared library; trying the next compiler" in said
    assert kernel_build.requirements() == []
    kernel_build.find_compiler.cache_clear()
    monkeypatch.setenv("CC", "icc -m64")
    assert found() == "icc"


@pytest.mark.parametrize(("family", "required", "lack"), [
    ("x86_64", [kernel_build.ZIG], "no C compiler was found"),
    ("riscv64", [], "there are none for riscv64 processors"),
])  # fmt: skip
def test_without_a_compiler_zig_is_required_where_it_helps_and_old_libraries_go(
    family: str, required: list[str], lack: str, commands: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(kernel_build, "machine", lambda: family)
    assert kernel_build.requirements() == required
    lib = tmp_path / "lib"
    lib.mkdir()
    (lib / library_file("avx2")).touch()
    assert (kernel_build.build(lib), files(lib)) == ([], set())
    warning = "the kernels are not built, and numpy does their work, many times slower"
    assert capsys.readouterr().err == f"moa kernels: {lack}: {warning}\n"


@pytest.mark.parametrize("names", [X86, ("avx512", "avx2")])
def test_all_variants_or_some_are_built(
    names: tuple[str, ...], commands: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_compiler(commands / "cc")
    monkeypatch.setenv("MOA_BUILD_KERNELS", "" if names == X86 else ",".join(reversed(names)))
    assert kernel_build.build(tmp_path / "lib") == [*names]
    assert files(tmp_path / "lib") == {library_file(name) for name in (PROBE, *names)}
    monkeypatch.setenv("MOA_BUILD_KERNELS", "avx2,neon")
    with pytest.raises(kernel_build.BuildError, match=r"names neon\. Of x86_64 processors there are: amx, avx512, "):
        kernel_build.build(tmp_path / "lib")


def test_in_place_are_those_that_the_cpu_runs(commands: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "lib"
    monkeypatch.setattr("kernel_build.variants.LIBRARIES", folder)
    write_compiler(commands / "cc")
    assert kernel_build.build(folder) == ["avx2"]  # what it makes tells nothing of the CPU
    monkeypatch.setattr(kernel_build, "run_here", lambda probe, names: ["avx512", "avx2"])
    assert kernel_build.build(folder) == ["avx512", "avx2"]
    monkeypatch.setenv("MOA_BUILD_KERNELS", "amx")
    assert kernel_build.build(folder) == ["amx"]


@pytest.mark.parametrize(("refused", "built"), [("-mamx-tile", X86[1:]), ("kernels.c", ()), ("probe.c", ())])
def test_what_does_not_compile_is_left_out_with_its_first_complaint(
    refused: str, built: tuple[str, ...], commands: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_compiler(commands / "cc")
    assert found() == "cc"
    write_compiler(commands / "cc", refuses=refused)
    assert kernel_build.build(tmp_path / "lib") == [*built]
    assert files(tmp_path / "lib") == {library_file(name) for name in (PROBE, *built) if built}
    name = PROBE if refused == "probe.c" else "amx"
    assert f"moa kernels: {name} is left out, because cc does not compile it: what is " in capsys.readouterr().err


@pytest.mark.parametrize(("plat_name", "machine", "system", "zig"), [
    ("manylinux_2_28_x86_64", "x86_64", "linux", "x86_64-linux-gnu.2.28"),
    ("manylinux_2_17_aarch64", "aarch64", "linux", "aarch64-linux-gnu.2.17"),
    ("macosx_11_0_arm64", "arm64", "darwin", "aarch64-macos.11.0"),
])  # fmt: skip
def test_a_platform_of_a_wheel_names_a_target(plat_name: str, machine: str, system: str, zig: str) -> None:
    target = kernel_build.target_of(plat_name)
    assert (target.machine, target.system, target.zig) == (machine, system, zig)
    with pytest.raises(kernel_build.BuildError, match="--plat-name=linux is no platform that kernels are built for"):
        kernel_build.target_of("linux")


def test_a_wheel_for_a_named_platform_has_all_variants_or_is_not_built(
    commands: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_build, "zig_compiler", lambda target: kernel_build.Compiler(("zig",)))
    write_compiler(commands / "zig")
    target = kernel_build.target_of("macosx_11_0_arm64")
    assert kernel_build.build(tmp_path / "lib", target) == ["neon"]
    assert files(tmp_path / "lib") == {"probe.dylib", "neon.dylib"}
    write_compiler(commands / "zig", refuses="-mamx-tile")
    with pytest.raises(kernel_build.BuildError, match="needs all variants, and has only: avx512, avxvnni, avx2"):
        kernel_build.build(tmp_path / "lib", kernel_build.target_of("manylinux_2_28_x86_64"))
