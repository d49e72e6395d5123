"""What a published drafter becomes: a checkpoint of ours in the cache, made once.

Both ends make the same bytes from the same files, so that their fingerprints agree. State: entries
`drafters/<hash of the files, their configuration and the target's sizes>`. Invariants: an entry is whole; what fits no
drafter of the target is refused by the tensor's name.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from moa_shared.drafter.checkpoint.checkpoint import is_finite, save_halves
from moa_shared.drafter.checkpoint.shipped import DRAFTER_FILE, NGRAMS_FILE
from moa_shared.drafter.checkpoint.statistics import CONFIDENCE_FILE
from moa_shared.drafter.kinds import KINDS
from moa_shared.drafter.kinds.config import Conversion, Layout, Published
from moa_shared.drafter.kinds.layout import ANOTHER
from moa_shared.drafter.layers.weights import DRAFT_IDS
from moa_shared.drafter.published.files import PublishedFiles
from moa_shared.errors import CheckpointError
from moa_shared.models import ModelFiles
from moa_shared.models.sources.cache import building, locked, writing
from moa_shared.models.sources.digest import canonical_json, combine, remembered_hash
from moa_shared.programs.atomic import whole_file
from moa_shared.programs.progress import Progress

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
    """What a checkpoint becomes for its target.

    Raises:
        CheckpointError: another layout, or one for another target; it names the tensor or the size.
    """
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
