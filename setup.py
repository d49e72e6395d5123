"""What pyproject.toml cannot say: the installation compiles the kernels, and its wheels are for one platform."""

from pathlib import Path

import kernel_build
from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext


class BuildKernels(build_ext):
    """Compiles the libraries into the package: in the build folder, or in place for an editable installation."""

    def run(self) -> None:
        wheel = self.distribution.get_command_obj("bdist_wheel", create=False)
        is_named = wheel is not None and wheel.plat_name_supplied
        folder = kernel_build.variants.LIBRARIES if self.editable_mode else Path(self.build_lib, "moa_kernels/lib")
        kernel_build.build(folder, kernel_build.target_of(wheel.plat_name) if is_named else None)

    def get_source_files(self) -> list[str]:
        return []  # MANIFEST.in names them

    get_outputs = get_source_files

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class PlatformWheel(bdist_wheel):
    """A wheel for any Python 3 on this platform: it holds machine code, but none that links Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2].replace("universal2", kernel_build.machine())


setup(
    ext_modules=[Extension("moa_kernels.lib", [])],  # so that files go to the platform's folder
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": PlatformWheel},
)
