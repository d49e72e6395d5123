"""From what a user names with --drafter to a checkpoint's file: a file, a folder, or an id on the hub.

Which model a published checkpoint is for it says by name, or by the tokenizer next to it. Sizes that fit prove little:
Llama 3, 3.1 and what was distilled into them have the same ones. A tokenizer that gives other tokens is proof; a name
is only said, because the same model has many.
"""

import re
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from moa_shared.drafter.checkpoint.checkpoint import is_finite, save_halves
from moa_shared.drafter.checkpoint.shipped import CONFIG_KEY, DRAFTER_FILE, NGRAMS_FILE
from moa_shared.drafter.checkpoint.statistics import CONFIDENCE_FILE
from moa_shared.drafter.kinds import KINDS
from moa_shared.drafter.kinds.config import Conversion, Layout, Published
from moa_shared.drafter.kinds.layout import ANOTHER
from moa_shared.drafter.layers.weights import DRAFT_IDS
from moa_shared.drafter.published_files import PICKLED, SAFETENSORS, PublishedFiles
from moa_shared.errors import CheckpointError, ModelSourceError, NotFoundError
from moa_shared.models import ModelFiles
from moa_shared.models.files import hash_tokenizer
from moa_shared.models.gguf_entry import model_name, storage_label
from moa_shared.models.hub import HUB_ID, fetch_from_hub
from moa_shared.models.storage.cache import (
    building,
    cache_root,
    canonical_json,
    combine,
    locked,
    remembered_hash,
    writing,
)
from moa_shared.models.storage.tensors import read_metadata
from moa_shared.plain_text import parse_json, plain_line
from moa_shared.programs.atomic import whole_file
from moa_shared.programs.progress import Progress, SilentProgress

_WANTED = ("config.json", "confidence.json", "*.safetensors", "*.bin", "*.index.json")


def find_drafter(spec: str, files: ModelFiles, cache_dir: Path | None = None, progress: Progress | None = None) -> Path:
    """The checkpoint's file that a user means; one that others published is converted into the cache once.

    Args:
        spec: a file; a folder that moa-train wrote; or a folder or hub id of a published checkpoint.
        files: its target.
        cache_dir: as of `moa_shared.models.resolve`.
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
        theirs, ours = _tokens(folder), _tokens(files.folder)
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


_FORMAT = "1"  # raise when an entry's content changes: older entries are then no longer found
_OF_TARGET = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters",
)  # fmt: skip


def adopt(published: PublishedFiles, name: str, files: ModelFiles, root: Path, progress: Progress) -> Path:
    """The checkpoint that a published one becomes, made now or before."""
    config = published.config()
    of_target = {key: files.config.get(key) for key in _OF_TARGET}
    hashes = [remembered_hash(path, root, progress) for path in published.weights]
    digest = combine([_FORMAT, *hashes, *(canonical_json(each).decode() for each in (config, of_target))])
    entry = root / "drafters" / digest[:32]
    made = entry / DRAFTER_FILE
    if not made.is_file():
        with locked(entry, progress):
            if not made.is_file():  # another process may have made it while we waited
                with progress.task(f"Preparing the drafter {name} (once)"):
                    _make(published, name, files, entry)
    _bring_along(published.folder, entry)
    return made


def _make(published: PublishedFiles, name: str, files: ModelFiles, entry: Path) -> None:
    tensors = published.tensors()
    shapes = {each: tuple(tensor.shape) for each, tensor in tensors.items()}
    config, names = convert(Published(shapes, published.config(), files.config, files.target_id, name))
    kept: dict[str, npt.NDArray[Any]] = {}
    for theirs, ours in sorted(names.items()):
        if ours == DRAFT_IDS:
            kept[ours] = _draft_ids(tensors[theirs], config.vocab_size, theirs, name)
            continue
        if tensors[theirs].dtype.kind == "i":
            raise CheckpointError(
                f"In {name} {theirs} is none of float32, float16 and bfloat16: moa takes no quantised drafter.",
                hint="Give the checkpoint that it was made from.",
            )
        if not is_finite(tensors[theirs]):
            raise CheckpointError(f"In {name} {theirs} holds values that are not numbers.")
        kept[ours] = tensors[theirs]
    needed = sum(tensor.nbytes for tensor in kept.values())
    with building(entry, needed, f"the drafter {name}") as part:
        save_halves(part, config, kept)


def _draft_ids(offsets: npt.NDArray[Any], vocabulary: int, theirs: str, name: str) -> npt.NDArray[np.int32]:
    """The target's token of each draft token, from the distance to it."""
    ids = offsets + np.arange(len(offsets))
    if offsets.dtype != np.int64:
        reason = "holds no whole numbers of 64 or 32 bits"
    elif ids.min() < 0 or ids.max() >= vocabulary:
        reason = f"leads to tokens outside the vocabulary of {vocabulary}"
    elif (np.diff(ids) <= 0).any():
        reason = "leads to tokens that are not in ascending order, each once"
    else:
        return ids.astype(np.int32)
    raise CheckpointError(f"In {name} {theirs} {reason}.", hint=ANOTHER)


def _bring_along(folder: Path, entry: Path) -> None:
    """Copies what was measured or counted for the drafter since: it is looked for next to the checkpoint."""
    for name in (NGRAMS_FILE, CONFIDENCE_FILE):
        theirs, ours = folder / name, entry / name
        if theirs.is_file() and not (ours.is_file() and ours.read_bytes() == theirs.read_bytes()):
            with writing(entry, name), whole_file(ours, several_writers=True) as partial:
                shutil.copyfile(theirs, partial)


def convert(of: Published) -> Conversion:
    """What a checkpoint becomes for its target; what does not fit is refused by the tensor or the size."""
    shapes, where = of.shapes, of.where
    layout = _recognise(shapes, where)
    try:
        config, kept = layout.convert(of)
    except KeyError as error:
        lacking = layout.published(str(error.args[0]), shapes)
        raise CheckpointError(f"{where} lacks the tensor {lacking}.", hint=ANOTHER) from None
    except (AttributeError, TypeError, ValueError, IndexError, ArithmeticError) as error:
        raise CheckpointError(f"The config.json of {where} cannot be used: {error}.") from None
    expected = config.shapes()
    theirs = {name: published for published, name in kept.items()}
    for name, shape in expected.items():
        if (found := theirs.get(name)) is None:
            raise CheckpointError(f"{where} lacks the tensor {layout.published(name, shapes)}.", hint=ANOTHER)
        if shapes[found] != shape:
            raise CheckpointError(
                f"In {where} {found} has the shape {list(shapes[found])}, "
                f"a drafter for {of.target_id} has {list(shape)}.",
                hint=ANOTHER,
            )
    if extra := sorted(name for name in theirs if name not in expected):
        what = f"{theirs[extra[0]]}, which no {layout.label} drafter has"
        raise CheckpointError(f"{where} holds {what}.", hint=_known_layouts())
    return config, kept


def _recognise(names: Collection[str], where: str) -> Layout:
    for kind in KINDS.values():
        for layout in kind.layouts:
            if layout.fits(names):
                return layout
    if any(name.startswith(("model.layers.", "lm_head.")) for name in names):
        raise CheckpointError(f"{where} is a whole language model, not a drafter.", hint=_known_layouts())
    first = min(names, default=None)
    what = f"tensors such as {first}, which are of no drafter that moa knows" if first else "no tensors"
    raise CheckpointError(f"{where} holds {what}.", hint=_known_layouts())


def _known_layouts() -> str:
    forms = [label for kind in KINDS.values() for name, label in kind.variants.items() if name not in kind.not_run]
    return f"moa takes its own checkpoints, and these as they are published: {', '.join(forms)}."
