"""From what a user names with --drafter to a checkpoint's file: a file, a folder, or an id on the hub.

Which model a published checkpoint is for it says by name, or by the tokenizer next to it. Sizes that fit prove little:
Llama 3, 3.1 and what was distilled into them have the same ones. A tokenizer that gives other tokens is proof; a name
is only said, because the same model has many.
"""

from __future__ import annotations

import pickle
import re
import shutil
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from moa_shared.drafter.assistant_gguf import assistant_config, assistant_tensors, is_assistant
from moa_shared.drafter.checkpoint import (
    CONFIDENCE_FILE,
    CONFIG_KEY,
    DRAFTER_FILE,
    NGRAMS_FILE,
    is_finite,
    save_checkpoint,
)
from moa_shared.drafter.kinds import KINDS, Kind
from moa_shared.drafter.kinds.config import DrafterConfig, Published, Shapes
from moa_shared.drafter.kinds.layout import ANOTHER, OWN_HEAD
from moa_shared.drafter.kinds.mtp import COPIES, MTP
from moa_shared.drafter.kinds.weights import DRAFT_IDS
from moa_shared.errors import CheckpointError, MoaError, ModelSourceError, NotFoundError
from moa_shared.models import ModelFiles
from moa_shared.models.files import hash_tokenizer, indexed_files, read_config
from moa_shared.models.gguf_entry import is_gguf, model_name, storage_label
from moa_shared.models.hub import HUB_ID, fetch_from_hub
from moa_shared.models.network.families import FAMILIES
from moa_shared.models.storage.cache import (
    building,
    cache_root,
    canonical_json,
    combine,
    locked,
    remembered_hash,
    writing,
)
from moa_shared.models.storage.gguf_header import read_header
from moa_shared.models.storage.tensors import NUMPY_TYPES, FileTensor, map_tensors, read_metadata
from moa_shared.models.weights import WeightReader
from moa_shared.plain_text import parse_json, plain_line
from moa_shared.programs.atomic import whole_file
from moa_shared.programs.progress import Progress
from moa_shared.protocol.memory_codec import round_to_bfloat16

PATTERNS = ("config.json", "confidence.json", "*.safetensors", "*.bin", "*.index.json")


def find_drafter(spec: str, files: ModelFiles, cache_dir: Path | None = None, progress: Progress | None = None) -> Path:
    """The checkpoint's file that a user means; one that others published is converted into the cache once.

    `spec`: a file; a folder that moa-train wrote; a folder or hub id of a published checkpoint; or "mtp": the head that
    comes with the target. `files`: its target.
    """
    root, progress = cache_root(cache_dir), progress or Progress()
    path = Path(spec).expanduser()
    if spec == MTP.name:
        if (head := ModelHead.find(files)) is None:
            raise NotFoundError(f"{files.target_id} has no multi-token-prediction head.", hint="Leave --drafter out.")
        return _adopt(head, f"MTP head of {files.target_id}", files, root, progress)
    if spec.strip() and path.is_dir():
        return drafter_in_folder(path, spec, files, root, progress)
    if path.is_file() and is_assistant(path):
        return _adopt(PublishedFiles(path.parent, (path,)), spec, files, root, progress)
    if path.is_file():
        if is_gguf(path):
            return _adopt(ModelHead(path.parent, (path,), files), spec, files, root, progress)
        is_safe = path.suffix == SAFETENSORS and (path.parent / "config.json").is_file() and not _is_ours(path)
        if not is_safe and path.suffix not in PICKLED:
            return path
        return _adopt(PublishedFiles(path.parent, (path,)), spec, files, root, progress)
    if path.suffix in (SAFETENSORS, *PICKLED) or not HUB_ID.fullmatch(spec):
        raise NotFoundError(f"There is no drafter checkpoint {spec}.", hint="Check the path given with --drafter.")
    return drafter_in_folder(fetch_from_hub(spec, progress, PATTERNS), spec, files, root, progress)


def drafter_in_folder(folder: Path, name: str, files: ModelFiles, root: Path, progress: Progress) -> Path:
    own = folder / DRAFTER_FILE
    return own if own.is_file() else _adopt(PublishedFiles.of(folder), name, files, root, progress)


def _is_ours(path: Path) -> bool:
    try:
        return CONFIG_KEY in read_metadata(path)
    except ModelSourceError:
        return True


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
    return plain_line(name)[:120] if isinstance(name, str) else ""


def _check_vocabulary(folder: Path, name: str, files: ModelFiles, root: Path) -> None:
    """Refuses a checkpoint whose folder holds a tokenizer with other tokens than the target's.

    Special tokens are not compared: models rename those that they do not use. One that cannot be read says nothing.
    """
    try:
        if not (folder / "tokenizer.json").is_file() or hash_tokenizer(folder, root) == files.tokenizer_hash:
            return
        theirs, ours = _tokens(folder), _tokens(files.folder)
    except (ModelSourceError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return
    for number in sorted(theirs.keys() & ours.keys()):
        if theirs[number] != ours[number]:
            there, here = plain_line(theirs[number]), plain_line(ours[number])
            what = f"token {number} is {there!r}, that of {files.target_id} is {here!r}"
            raise CheckpointError(f"{name} is for a model with other tokens: its {what}.", hint=ANOTHER)


def _tokens(folder: Path) -> dict[int, str]:
    content = parse_json((folder / "tokenizer.json").read_text("utf-8"))
    special = {int(token["id"]) for token in content.get("added_tokens") or []}
    vocabulary = content["model"]["vocab"]
    if not isinstance(vocabulary, Mapping):  # of SentencePiece: pieces with their scores
        vocabulary = {piece: number for number, (piece, _) in enumerate(vocabulary)}
    return {int(number): str(token) for token, number in vocabulary.items() if int(number) not in special}


_FORMAT = "1"  # raise when an entry's content changes: older entries are then no longer found
_OF_TARGET = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters", "layer_types", "num_kv_shared_layers",
)  # fmt: skip


def _adopt(published: PublishedFiles, name: str, files: ModelFiles, root: Path, progress: Progress) -> Path:
    """The checkpoint that a published one becomes, made now or before; says if it names another target."""
    _check_vocabulary(published.folder, name, files, root)
    config = published.config()
    of_target = {key: files.config.get(key) for key in _OF_TARGET}
    hashes = [remembered_hash(path, root, progress) for path in published.weights] or [files.fingerprint]
    digest = combine([_FORMAT, *hashes, *(canonical_json(each).decode() for each in (config, of_target))])
    entry = root / "drafters" / digest[:32]
    made = entry / DRAFTER_FILE
    if not made.is_file():
        with locked(entry, progress):
            if not made.is_file():  # another process may have made it while we waited
                with progress.task(f"Preparing the drafter {name} (once)"):
                    _make(published, name, files, entry)
    for file in (NGRAMS_FILE, CONFIDENCE_FILE):  # was measured or counted since, and is looked for next to it
        theirs, ours = published.folder / file, entry / file
        if theirs.is_file() and not (ours.is_file() and ours.read_bytes() == theirs.read_bytes()):
            with writing(entry, file), whole_file(ours, several_writers=True) as partial:
                shutil.copyfile(theirs, partial)
    named = named_target(config)
    if named and model_key(named) != model_key(files.target_id):
        progress.note(f"The drafter {name} says that it was trained for {named}; here it drafts for {files.target_id}.")
    return made


def _make(published: PublishedFiles, name: str, files: ModelFiles, entry: Path) -> None:
    tensors = published.tensors()
    shapes = {each: tuple(tensor.shape) for each, tensor in tensors.items()}
    config, names = convert(Published(shapes, published.config(), files.config, files.target_id, name))
    kept: dict[str, npt.NDArray[Any]] = {}
    for theirs, ours in sorted(names.items()):
        kept[ours] = tensor = tensors[theirs]
        if ours == DRAFT_IDS:
            kept[ours] = _draft_ids(tensor, config, theirs, name)
        elif tensor.dtype.kind == "i":
            what = f"In {name} {theirs} is none of float32, float16 and bfloat16: moa takes no quantised drafter."
            raise CheckpointError(what, hint="Give the checkpoint that it was made from.")
        elif not is_finite(tensor):
            raise CheckpointError(f"In {name} {theirs} holds values that are not numbers.")
    if config.clusters:  # whose tokens then follow one another
        kept[OWN_HEAD] = kept[OWN_HEAD][kept[DRAFT_IDS]]
    needed = sum(tensor.nbytes for tensor in kept.values())
    with building(entry, needed, f"the drafter {name}") as part:
        save_checkpoint(part / DRAFTER_FILE, config, kept, in_halves=True)


def _draft_ids(stored: npt.NDArray[Any], config: DrafterConfig, theirs: str, name: str) -> npt.NDArray[np.int32]:
    """The tokens of columns, from offsets in ascending order, or of clusters: all tokens in any order."""
    ids = stored if config.clusters else stored + np.arange(len(stored))
    if stored.dtype != np.int64:
        reason = "holds no whole numbers of 64 or 32 bits"
    elif ids.min() < 0 or ids.max() >= config.vocab_size:
        reason = f"leads to tokens outside the vocabulary of {config.vocab_size}"
    elif (np.diff(np.sort(ids) if config.clusters else ids) <= 0).any():
        reason = f"leads to tokens that are not {'' if config.clusters else 'in ascending order, '}each once"
    else:
        return ids.astype(np.int32)
    raise CheckpointError(f"In {name} {theirs} {reason}.", hint=ANOTHER)


def convert(of: Published) -> tuple[DrafterConfig, dict[str, str]]:
    """What a checkpoint becomes for its target: a configuration, and our names of tensors by theirs.

    What becomes `draft_ids` is a table of offsets: from each draft token to the target's token.
    """
    shapes, where = of.shapes, of.where
    kind = _kind_of(shapes, where)
    # What older versions of transformers stored is made from the configuration.
    names = {name: kind.our_name(name) for name in shapes if not name.endswith("rotary_emb.inv_freq")}
    try:
        config, left_out = kind.convert(of, {ours: shapes[name] for name, ours in names.items()})
        kept, expected = {name: ours for name, ours in names.items() if not ours.startswith(left_out)}, config.shapes()
        if lacking := [name for name in expected if name not in kept.values()]:
            raise KeyError(lacking[0])
    except KeyError as error:
        raise CheckpointError(f"{where} lacks the tensor {error.args[0]}.", hint=ANOTHER) from None
    except (AttributeError, TypeError, ValueError, IndexError, ArithmeticError) as error:
        raise CheckpointError(f"The config.json of {where} cannot be used: {error}.") from None
    for name, ours in kept.items():
        if ours not in expected:
            what = f"{name}, which no {kind.label} drafter has"
            raise CheckpointError(f"{where} holds {what}.", hint=_known_layouts())
        if shapes[name] != expected[ours]:
            what = f"the shape {list(shapes[name])}, a drafter for {of.target_id} has {list(expected[ours])}"
            raise CheckpointError(f"In {where} {name} has {what}.", hint=ANOTHER)
    return config, kept


def _kind_of(names: Collection[str], where: str) -> Kind:
    if kind := next((kind for kind in KINDS.values() if kind.fits(names)), None):
        return kind
    if any(name.startswith(("model.layers.", "lm_head.")) for name in names):
        raise CheckpointError(f"{where} is a whole language model, not a drafter.", hint=_known_layouts())
    first = min(names, default=None)
    what = f"tensors such as {first}, which are of no drafter that moa knows" if first else "no tensors"
    raise CheckpointError(f"{where} holds {what}.", hint=_known_layouts())


def _known_layouts() -> str:
    forms = [label for kind in KINDS.values() for name, label in kind.variants.items() if name not in kind.not_run]
    return f"moa takes its own checkpoints, and these as they are published: {', '.join(forms)}."


SAFETENSORS, PICKLED = ".safetensors", (".bin", ".pt", ".pth")
_SINGLE = ("model.safetensors", "pytorch_model.bin")  # each, or else its index, in this order
_CODES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32"}
_REFETCH = "Fetch it again."
# Of a damaged pickle torch lets through whatever its instructions stumble over.
_UNREADABLE = (OSError, EOFError, RuntimeError, ValueError, LookupError, TypeError, AttributeError, pickle.PickleError)
Read = TypeVar("Read")


@dataclass(frozen=True, slots=True)
class PublishedFiles:
    """config.json, and tensors in safetensors or pickled by torch, perhaps in shards.

    Pickles are read with `weights_only`, which makes tensors and nothing else.
    """

    folder: Path
    weights: tuple[Path, ...]

    @classmethod
    def of(cls, folder: Path) -> PublishedFiles:
        for name in _SINGLE:
            if (folder / name).is_file():
                return cls(folder, (folder / name,))
            index = folder / f"{name}.index.json"
            if index.is_file():
                return cls(folder, _of_checkpoint(indexed_files, index))
        what = f"The folder {folder} holds no drafter: none of {DRAFTER_FILE}, {', '.join(_SINGLE)}."
        raise CheckpointError(what, hint="Name a folder that moa-train fit wrote, or a checkpoint as it is published.")

    def config(self) -> dict[str, Any]:
        hint = "Put the config.json that was published with the checkpoint next to it."
        if is_gguf(self.weights[0]):
            return _of_checkpoint(assistant_config, self.weights[0])
        return _of_checkpoint(read_config, self.folder, hint)

    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        """The tensors of all files: float32, float16, the bit patterns of bfloat16 as uint16, whole numbers as int64.

        A tensor of another type is int32 of zeros, which no drafter has.
        """
        return {name: _stored(tensor) for name, tensor in self._mapped().items()}

    def shapes(self) -> Shapes:
        """Of the tensors, of which none is read; pickled files are read whole. Errors as of `tensors`."""
        return {name: tuple(tensor.shape) for name, tensor in self._mapped().items()}

    def _mapped(self) -> dict[str, FileTensor]:
        found: dict[str, FileTensor] = {}
        for path in self.weights:
            read = assistant_tensors if is_gguf(path) else map_tensors
            found |= _unpickled(path) if path.suffix in PICKLED else _of_checkpoint(read, path)
        return found


@dataclass(frozen=True, slots=True)
class ModelHead(PublishedFiles):
    """The multi-token-prediction head of a model: a GGUF file of its own (`weights`), or among the model's tensors."""

    files: ModelFiles

    @classmethod
    def find(cls, files: ModelFiles) -> ModelHead | None:
        """The one in the model's own files, else the first `mtp-*.gguf` next to them that is for a model like it."""
        for weights in ((), *((path,) for path in sorted(files.weights[0].parent.glob("mtp-*.gguf")))):
            with suppress(MoaError):
                head = cls(files.folder, weights, files)
                if MTP.fits(head.shapes()):
                    return head
        return None

    def config(self) -> dict[str, Any]:
        return dict(self.files.config)

    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        reader = self._reader()

        def stored(name: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
            wide, kind = reader.array(name).reshape(shape), reader.format_of(name)
            return wide if kind == "f32" else round_to_bfloat16(wide) if kind == "bf16" else wide.astype(np.float16)

        return {name: stored(name, shape) for name, shape in self.shapes().items()}

    def shapes(self) -> Shapes:
        reader = self._reader()
        found = {name: reader.shape(name) for name in reader.names() if not name.endswith(COPIES)}
        gates = {name: (1, *found[name])[-2:] for name in found if name.endswith("shared_expert_gate.weight")}
        return found | gates  # which GGUF files have without their one row

    def _reader(self) -> WeightReader:
        for path in self.weights:
            ours = FAMILIES[str(self.files.config["model_type"])].gguf
            theirs = _of_checkpoint(partial(read_header, arrays=False), path).architecture
            if ours is None or theirs != ours.architecture:
                what = f"{path} is a head of the family {theirs}, {self.files.target_id} is of another one"
                raise CheckpointError(f"{what}.", hint=ANOTHER)
        whole = replace(self.files, weights=self.weights or self.files.weights)
        return WeightReader(whole, of_head=True)


def _of_checkpoint(read: Callable[[Path], Read], path: Path, hint: str = _REFETCH) -> Read:
    try:
        return read(path)
    except ModelSourceError as error:
        raise CheckpointError(error.message, hint=hint) from None


def _stored(tensor: FileTensor) -> npt.NDArray[Any]:
    if tensor.dtype not in NUMPY_TYPES:  # such as EAGLE-3's marks of the target's tokens, which are not needed
        return np.broadcast_to(np.int32(0), tensor.shape)
    values = tensor.data.view(NUMPY_TYPES[tensor.dtype]).reshape(tensor.shape)
    return values.astype({"F64": np.float32, "I32": np.int64}.get(tensor.dtype, values.dtype), copy=False)


def _unpickled(path: Path) -> dict[str, FileTensor]:
    try:
        import torch
    except ImportError:
        raise CheckpointError(
            f"{path} is pickled, and reading it takes torch, which is not installed here.",
            hint="Leave --drafter out: the server sends its drafter. Or install torch.",
        ) from None
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except _UNREADABLE as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        what = f"{path} is corrupt, or holds more than tensors, which is not read ({reason})."
        raise CheckpointError(what, hint=_REFETCH) from None
    if not isinstance(content, dict) or not all(isinstance(value, torch.Tensor) for value in content.values()):
        raise CheckpointError(f"{path} holds something other than tensors by name.", hint=_REFETCH)
    found = {}
    for name, value in content.items():
        code = _CODES.get(str(value.dtype).removeprefix("torch."), "") if value.layout == torch.strided else ""
        data = value.detach().flatten().view(torch.uint8).numpy() if code else np.empty(0, np.uint8)
        found[str(name)] = FileTensor(code, tuple(value.shape), data)
    return found
