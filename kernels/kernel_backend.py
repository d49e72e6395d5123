"""The build backend (PEP 517): setuptools, plus a C compiler from PyPI where the machine has none that works."""

import re

from kernel_build import requirements
from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403


def get_requires_for_build_wheel(config_settings: dict[str, str | list[str]] | None = None) -> list[str]:
    named = re.search(r"--plat-name[= ,'\"]+([\w.]+)", str((config_settings or {}).get("--build-option")))
    return [*build_meta.get_requires_for_build_wheel(config_settings), *requirements(named and named[1])]


get_requires_for_build_editable = get_requires_for_build_wheel
