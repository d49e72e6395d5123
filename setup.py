"""What pyproject.toml cannot say: the installation compiles the kernels, and its wheels are for one platform.

Run by the build backend (kernels/kernel_backend.py), which makes the modules of its folder importable.
"""

from __future__ import annotations

from pathlib import Path

import kernel_build
from kernel_build import variants
from setuptools import Command, Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build


class BuildKernels(Command):
    """Compiles the libraries into the package: in the build folder, or in place for an editable installation."""

    description = "compile the kernels"
    editable_mode = False
    build_lib: str | None = None

    def initialize_options(self) -> None:
        self.libraries: list[str] = []

    def finalize_options(self) -> None:
        self.set_undefined_options("build_py", ("build_lib", "build_lib"))

    @property
    def folder(self) -> Path:
        return (
            variants.LIBRARIES
            if self.editable_mode
            else Path(str(self.build_lib), variants.PACKAGE.name, variants.LIBRARIES.name)
        )

    def run(self) -> None:
        kernel_build.build(self.folder)

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


class PlatformDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return True  # so that files go to the platform's folder


setup(
    distclass=PlatformDistribution,
    cmdclass={"build": Build, "build_kernels": BuildKernels, "bdist_wheel": PlatformWheel},
)
