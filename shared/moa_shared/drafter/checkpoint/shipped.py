"""What comes with moa for a target: drafters, a folder each, how far each can be trusted, and a table of n-grams.

The drafters are a distribution of their own, for servers: devices fetch from them what they draft with.
"""

from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from moa_shared.errors import ConfigError, NotFoundError
from moa_shared.plain_text import parse_json
from moa_shared.programs.entry import pip_install

CONFIG_KEY = "moa_drafter_config"  # in the metadata of the safetensors file, written by moa_shared.drafter
DRAFTER_FILE = "drafter.safetensors"
NGRAMS_FILE = "ngrams.safetensors"
NGRAMS_TARGET_KEY = "target_fingerprint"  # in the metadata of that file, written by moa-train ngrams
PACKAGE = "moa_drafters"
DEFAULT_DRAFTER = "default"
DEEP_DRAFTER = "deep"  # reuses many more of the target's layers: slower, and better at standalone text
SHIPPED_DRAFTERS = (DEFAULT_DRAFTER, DEEP_DRAFTER)
# Tokens a forward with trees of 24 on questions held back (docs/drafters.md).
TOKENS_A_FORWARD = {DEFAULT_DRAFTER: 2.40, DEEP_DRAFTER: 3.71}


def shipped_drafter(target_fingerprint: str, name: str = DEFAULT_DRAFTER, folder: Path | None = None) -> Path | None:
    """The checkpoint made for a target, or None if none comes with moa.

    Args:
        target_fingerprint: hexadecimal, of moa_shared.models.ModelFiles.
        name: of SHIPPED_DRAFTERS; folders of deep drafters are called `...-deep`.
        folder: holds a folder for each drafter; None: that of the distribution.
    """
    from moa_shared.models.storage.tensors import read_metadata

    if folder is None and (folder := drafters_folder()) is None:
        if find_ngrams(target_fingerprint) is None:
            return None
        hint = f"Install them: {pip_install()} ./drafters in the checkout, or its wheel moa_split_drafters-*.whl."
        raise ConfigError("The drafters of the default model are not installed.", hint=hint)
    for path in sorted(folder.glob(f"*/{DRAFTER_FILE}")):
        if path.parent.name.endswith(f"-{DEEP_DRAFTER}") != (name == DEEP_DRAFTER):
            continue
        if parse_json(read_metadata(path).get(CONFIG_KEY, "{}")).get("target_fingerprint") == target_fingerprint:
            return path
    return None


def require_shipped_drafter(target_fingerprint: str, target_id: str, name: str, *, hint: str) -> Path:
    """As `shipped_drafter`, when one was asked for by name."""
    path = shipped_drafter(target_fingerprint, name)
    if path is None:
        raise NotFoundError(f"No {name} drafter comes with moa for {target_id}.", hint=hint)
    return path


def installed_drafters(target_fingerprint: str) -> dict[str, Path]:
    """The checkpoints made for a target by name; empty where the distribution is not installed, as on most devices."""
    if drafters_folder() is None:
        return {}
    return {name: path for name in SHIPPED_DRAFTERS if (path := shipped_drafter(target_fingerprint, name)) is not None}


def checkpoint_path(given: Path) -> Path:
    """The checkpoint that a path means: a file, or the one in a folder."""
    return given / DRAFTER_FILE if given.is_dir() else given


def find_ngrams(target_fingerprint: str, drafter: Path | None = None, folder: Path | None = None) -> Path | None:
    """The table of n-grams beside a drafter, else the one that comes with moa; None: there is none.

    Args:
        target_fingerprint: as above; a table for another target is passed over.
        drafter: a checkpoint's path.
        folder: holds a folder for each target; None: our own.
    """
    from moa_shared.models.storage.tensors import read_metadata

    for path in companions(NGRAMS_FILE, drafter, folder):
        if read_metadata(path).get(NGRAMS_TARGET_KEY) == target_fingerprint:
            return path
    return None


def companions(name: str, drafter: Path | None = None, folder: Path | None = None) -> list[Path]:
    """The files of a name that there are: the one beside a drafter first, then those that come with moa."""
    beside = [] if drafter is None else [drafter.parent / name]
    ours = folder or Path(str(files("moa_shared") / "drafter" / "statistics"))  # small: devices have them too
    return [path for path in [*beside, *sorted(ours.glob(f"*/{name}"))] if path.is_file()]


def drafters_folder() -> Path | None:
    """Where the distribution has a folder for each drafter; None: it is not installed. Nothing of it is imported."""
    spec = find_spec(PACKAGE)
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None
