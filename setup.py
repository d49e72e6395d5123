"""What pyproject.toml cannot say: the installation compiles the kernels, and its wheels are for one platform.

With SOURCE_DATE_EPOCH, the same sources give the same bytes of source distribution and wheel. Run by the build
backend (kernels/kernel_backend.py), which makes the modules of its folder importable.
"""

from __future__ import annotations

import gzip
import os
import tarfile
import time
from pathlib import Path

import kernel_build
from kernel_build import variants
from setuptools import Command, Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build
from setuptools.command.sdist import sdist


class BuildKernels(Command):
    """Compiles the libraries into the package: in the build folder, or in place for an editable installation."""

    description = "compile the kernels"
    editable_mode = False
    build_lib: str | None = None
    plat_name: str | None = None

    def initialize_options(self) -> None:
        self.libraries: list[str] = []

    def finalize_options(self) -> None:
        self.set_undefined_options("build_py", ("build_lib", "build_lib"))
        wheel = self.distribution.get_command_obj("bdist_wheel", create=False)
        if wheel is not None and wheel.plat_name_supplied:
            self.plat_name = wheel.plat_name

    @property
    def folder(self) -> Path:
        return (
            variants.LIBRARIES
            if self.editable_mode
            else Path(str(self.build_lib), variants.PACKAGE.name, variants.LIBRARIES.name)
        )

    def run(self) -> None:
        kernel_build.build(self.folder, kernel_build.target_of(self.plat_name) if self.plat_name else None)

    def get_source_files(self) -> list[str]:
        return []  # MANIFEST.in names them

    def get_outputs(self) -> list[str]:
        return [str(path) for path in self.folder.glob("*")]

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class Build(build):
    sub_commands = [*build.sub_commands, ("build_kernels", None)]  # noqa: RUF012 (as in setuptools)


class PlatformWheel(bdist_wheel):
    """A wheel for any Python 3 on this platform: it holds machine code, but none that links Python."""

    def get_tag(self) -> tuple[str, str, str]:
        platform_tag = super().get_tag()[2].replace("universal2", kernel_build.machine())
        return "py3", "none", platform_tag


class PlainSdist(sdist):
    """Names no time, order, owner or mode of this machine's files."""

    def make_archive(self, base_name: str, format: str, base_dir: str, **_: object) -> str:
        if format != "gztar":
            raise ValueError(f"source distributions are in the format gztar, not {format}")
        made = int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))

        def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
            member.mtime, member.mode = made, 0o755 if member.mode & 0o100 else 0o644
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            return member

        path = Path(f"{base_name}.tar.gz")
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            path.open("wb") as file,
            gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=made) as zipped,
            tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for each in sorted(Path(base_dir).rglob("*")):
                if each.is_file():
                    archive.add(each, filter=plain)
        return str(path)


class PlatformDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return True  # so that files go to the platform's folder


setup(
    distclass=PlatformDistribution,
    cmdclass={"build": Build, "build_kernels": BuildKernels, "bdist_wheel": PlatformWheel, "sdist": PlainSdist},
)
