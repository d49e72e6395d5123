"""From what a user names with --drafter to a checkpoint's file: a file, a folder, or an id on the hub.

Which model a published checkpoint is for it says by name, or by the tokenizer next to it. Sizes that fit prove little:
Llama 3, 3.1 and what was distilled into them have the same ones. A tokenizer that gives other tokens is proof; a name
is only said, because the same model has many.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moa_shared.drafter.checkpoint.shipped import CONFIG_KEY, DRAFTER_FILE
from moa_shared.drafter.published.adopt import adopt
from moa_shared.drafter.published.files import PICKLED, SAFETENSORS, PublishedFiles
from moa_shared.errors import CheckpointError, ModelSourceError, NotFoundError
from moa_shared.models import ModelFiles
from moa_shared.models.gguf.parts import model_name, storage_label
from moa_shared.models.sources.cache import cache_root
from moa_shared.models.sources.hub import HUB_ID, fetch_from_hub
from moa_shared.models.tensors import read_metadata
from moa_shared.models.tokenizer.tokenizer_hash import hash_tokenizer
from moa_shared.programs.progress import Progress, SilentProgress
from moa_shared.text.json_text import parse_json
from moa_shared.text.plain_text import plain_line

_WANTED = ("config.json", "confidence.json", "*.safetensors", "*.bin", "*.index.json")


def find_drafter(spec: str, files: ModelFiles, cache_dir: Path | None = None, progress: Progress | None = None) -> Path:
    """The checkpoint's file that a user means; one that others published is converted into the cache once.

    Args:
        spec: a file; a folder that moa-train wrote; or a folder or hub id of a published checkpoint.
        files: its target.
        cache_dir: as of `moa_shared.models.resolve`.

    Raises:
        NotFoundError: no such file or folder, and not a hub id.
        ModelSourceError: the hub has none of that id, or cannot be reached.
        CheckpointError: a layout that is not known, or a drafter for another target, by its sizes or its tokenizer.
    """
    root, progress = cache_root(cache_dir), progress or SilentProgress()
    path = Path(spec).expanduser()
    if spec.strip() and path.is_dir():
        return drafter_in_folder(path, spec, files, root, progress)
    if path.is_file():
        is_whole = (path.parent / "config.json").is_file() and not _is_ours(path)
        if path.suffix not in PICKLED and not (path.suffix == SAFETENSORS and is_whole):
            return path
        return _adopted(PublishedFiles(path.parent, (path,)), spec, files, root, progress)
    if path.suffix in (SAFETENSORS, *PICKLED) or not HUB_ID.fullmatch(spec):
        raise NotFoundError(f"There is no drafter checkpoint {spec}.", hint="Check the path given with --drafter.")
    return drafter_in_folder(fetch_from_hub(spec, progress, _WANTED), spec, files, root, progress)


def drafter_in_folder(folder: Path, name: str, files: ModelFiles, root: Path, progress: Progress) -> Path:
    """The checkpoint's file of a folder."""
    own = folder / DRAFTER_FILE
    if own.is_file():
        return own
    return _adopted(PublishedFiles.of(folder), name, files, root, progress)


def _adopted(published: PublishedFiles, name: str, files: ModelFiles, root: Path, progress: Progress) -> Path:
    """As `adopt`, of a checkpoint that does not belong to another model by its tokenizer; says if it names another."""
    check_vocabulary(published.folder, name, files, root)
    path = adopt(published, name, files, root, progress)
    named = named_target(published.config())
    if named and model_key(named) != model_key(files.target_id):
        progress.note(f"The drafter {name} says that it was trained for {named}; here it drafts for {files.target_id}.")
    return path


def _is_ours(path: Path) -> bool:
    """Whether it says its configuration; a file that cannot be read is looked at by who loads it."""
    try:
        return CONFIG_KEY in read_metadata(path)
    except ModelSourceError:
        return True


_TOKENIZER = "tokenizer.json"
_MOST_NAME = 120  # characters
_STORED = re.compile(r"[-_. ](gguf|fp8|awq|gptq|int4|int8|bnb)\b.*", re.IGNORECASE)


def model_key(name: str) -> str:
    """What is left of a model's name that says which one it is, however it is stored and whoever repeats it.

    Equal for Qwen/Qwen3-8B, unsloth/Qwen3-8B-GGUF:Q4_K_M, Qwen3-8B-Q4_K_M.gguf and "Qwen3 8B".
    """
    last = name.rstrip("/").rsplit("/", 1)[-1].partition("@")[0].partition(":")[0]
    stem = model_name(Path(last)) if last.lower().endswith(".gguf") else last
    if label := storage_label(f"{stem}.gguf"):
        stem = stem.removesuffix(label).rstrip("-_.")
    stem = _STORED.sub("", stem)
    return re.sub(r"[^a-z0-9.]", "", stem.lower().removesuffix("-hf")).removeprefix("meta")


def named_target(config: Mapping[str, Any]) -> str:
    """The name of the model that a published config.json says the drafter is for; "": it does not say."""
    speculators = config.get("speculators_config")
    verifier = speculators.get("verifier") if isinstance(speculators, Mapping) else None
    name = verifier.get("name_or_path") if isinstance(verifier, Mapping) else None
    return plain_line(name)[:_MOST_NAME] if isinstance(name, str) else ""


def check_vocabulary(folder: Path, name: str, files: ModelFiles, root: Path) -> None:
    """Refuses a checkpoint whose folder holds a tokenizer with other tokens than the target's.

    Special tokens are not compared: models rename those that they do not use. A folder without a tokenizer passes, and
    so does one whose tokenizer cannot be read: neither says anything.
    """
    if not (folder / _TOKENIZER).is_file():
        return
    try:
        if hash_tokenizer(folder, root) == files.tokenizer_hash:
            return
        theirs, ours = _tokens(folder), _tokens(files.tokenizer)
    except (ModelSourceError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return
    for number in sorted(theirs.keys() & ours.keys()):
        if theirs[number] != ours[number]:
            raise CheckpointError(
                f"{name} is for a model with other tokens: its token {number} is {plain_line(theirs[number])!r},"
                f" that of {files.target_id} is {plain_line(ours[number])!r}.",
                hint="Give a drafter that was trained for this target, or --drafter none.",
            )


def _tokens(folder: Path) -> dict[int, str]:
    content = parse_json((folder / _TOKENIZER).read_text("utf-8"))
    special = {int(token["id"]) for token in content.get("added_tokens") or []}
    vocabulary = content["model"]["vocab"]
    if not isinstance(vocabulary, Mapping):  # of SentencePiece: pieces with their scores
        vocabulary = {piece: number for number, (piece, _) in enumerate(vocabulary)}
    return {int(number): str(token) for token, number in vocabulary.items() if int(number) not in special}
