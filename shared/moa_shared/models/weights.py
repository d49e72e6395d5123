"""`WeightReader`: the tensors of a target by their Hugging Face names, whatever kind of file they are in.

Reads GGUF files, safetensors (float32, float16, bfloat16) and the parts that devices fetch. Files are mapped, and only
what is asked for is read. Invariant: no number that is given out is infinite or not a number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import numpy.typing as npt
from moa_kernels import QuantisedMatrix, Tiles

from moa_shared.errors import ModelSourceError
from moa_shared.models.files import GENERATION_CONFIG, TOKENIZER_FILES, ModelFiles
from moa_shared.models.gguf_configuration import hugging_face_name
from moa_shared.models.gguf_entry import is_gguf
from moa_shared.models.network.families import FAMILIES
from moa_shared.models.network.plan import RowOrders, row_orders, unread_tensors
from moa_shared.models.storage import tensors
from moa_shared.models.storage.gguf_header import read_header
from moa_shared.models.storage.tensors import EMBEDDINGS, HEAD, Bytes, Floats

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel

_TEXT_PARTS = ("model.language_model.", "language_model.")  # how the names of a text's model begin in a larger one
MAPPED_BYTES = 16 << 20  # of files that may stay in memory while a model is packed
_FLOATS = {"F32": tensors.F32, "F16": tensors.F16, "BF16": tensors.BF16}
_REFETCH = "Fetch the model again."


@dataclass(frozen=True, slots=True)
class _Stored:
    """One tensor in its file: raw uint8 [..., bytes of a row]."""

    stored: tensors.TensorFormat
    shape: tuple[int, ...]
    source: Bytes  # the bytes in the file that it is taken from
    heads: int = 0  # of paired rows; 0: none are paired
    offset: float = 0.0  # what the file has added to the numbers
    take: tensors.Take | None = None  # how it is taken, where it is a part of `source`
    order: npt.NDArray[np.int64] | None = None  # which rows of `source` it has; None: all
    scales: Bytes | None = None  # of gpt-oss's blocks, which are in a tensor of their own

    @property
    def raw(self) -> Bytes:
        if self.order is not None:
            return self.source[self.order]
        return self.source if self.take is None else self.take(self.source)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape[:-1]) * self.stored.row_bytes(self.shape[-1])


class WeightReader:
    """The weights of a model, or those parts of them that a device has; ModelSourceError where they cannot be read."""

    def __init__(self, files: ModelFiles, *, of_head: bool = False) -> None:
        """`of_head`: the multi-token-prediction heads' (`tensors.head_name`), and none of the model's own."""
        self._files, self.tiles = files, dict[str, Tiles]()  # of matrices that are packed
        self.config = files.config  # of the whole model
        gguf = [path for path in files.weights if is_gguf(path)]
        whole = _open_safetensors([path for path in files.weights if path not in gguf])
        for path in gguf:
            whole |= _open_gguf(path, files)
        self._sources = {id(tensor.source.base): tensor.source for tensor in whole.values()}  # one a file
        self._tensors: dict[str, _Stored] = {}
        turned, unread = files.config.get("model_type") == "gpt_oss", unread_tensors(files.config)
        orders = row_orders(files.config)
        for name, tensor in whole.items():
            own = tensors.head_name(name, int(files.config["num_hidden_layers"]))
            if name not in unread and bool(own) == of_head:
                self._tensors |= _in_order(own or name, tensor, orders) or _apart(own or name, tensor, turned=turned)
        self._tied = HEAD not in self._tensors and bool(files.config.get("tie_word_embeddings", False))
        self._looked_at = 0  # bytes since the pages were dropped

    def with_tiles(self, tiles: Mapping[str, Tiles]) -> WeightReader:
        """The same with these matrices packed; all else is read from its files."""
        other = copy(self)
        other.tiles = dict(tiles)
        return other

    def names(self) -> list[str]:
        """The tensors that are stored; a tied head is not among them."""
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._find(name).shape

    def format_of(self, name: str) -> str:
        return self._find(name).stored.name

    def stored_bytes(self, name: str) -> int:
        return self._find(name).nbytes

    def stored(self, name: str, rows: slice) -> tuple[str, Bytes, int]:
        """Its format, its rows' bytes as its file has them (mapped), and how many heads of paired rows it has.

        Of a tensor that has the rows of its file in another order, these `rows` alone, in memory.
        """
        tensor = self._find(name)
        raw = tensor.raw if tensor.order is None else tensor.source[tensor.order[rows]]
        return tensor.stored.name, raw, tensor.heads

    def blocks(self, name: str) -> QuantisedMatrix | Tiles | None:
        """A matrix packed, or in its file's blocks with rows in transformers' order; None: it is in other formats."""
        if (tiles := self.tiles.get(self._alias(name))) is not None:
            return tiles
        tensor = self._find(name)
        if tensor.stored.name not in tensors.BLOCKS or len(tensor.shape) != 2:
            return None
        raw = tensor.raw
        self._require_finite(name, tensor.stored, raw)
        raw = raw.reshape(tensor.shape[0], tensor.shape[1] // tensor.stored.values, tensor.stored.size)
        return QuantisedMatrix(tensor.stored.name, unpair_rows(raw, tensor.heads) if tensor.heads else raw)

    def array(self, name: str) -> Floats:
        """A tensor in float32, a new array that the caller may change."""
        tensor = self._find(name)
        values = self._widen(name, tensor.stored, tensor.raw)
        if tensor.offset:
            values -= np.float32(tensor.offset)
        return unpair_rows(values, tensor.heads) if tensor.heads else values

    def rows(self, name: str, ids: Sequence[int] | npt.NDArray[np.integer[Any]]) -> Floats:
        """Some rows of a matrix in float32: [ids, width]."""
        tensor = self._find(name)
        places = np.asarray(ids, np.int64)
        if tensor.heads:
            places = paired_places(places, tensor.shape[0], tensor.heads)
        source = tensor.raw if tensor.order is None else tensor.source
        return self._widen(name, tensor.stored, source[places if tensor.order is None else tensor.order[places]])

    def drop_pages(self) -> None:
        self._looked_at = 0
        for source in self._sources.values():
            tensors.drop_pages(source)

    def _widen(self, name: str, stored: tensors.TensorFormat, raw: Bytes) -> Floats:
        self._require_finite(name, stored, raw)
        values = tensors.to_float32(stored, raw)
        if stored.name not in tensors.CHECKED and not bool(np.isfinite(values).all()):
            raise self._not_finite(name)
        return values

    def _require_finite(self, name: str, stored: tensors.TensorFormat, raw: Bytes) -> None:
        self._looked_at += raw.nbytes
        if self._looked_at > MAPPED_BYTES:
            self.drop_pages()
        if not tensors.are_finite(stored, raw):
            raise self._not_finite(name)

    def _not_finite(self, name: str) -> ModelSourceError:
        what = f"The tensor {name} of {self._files.target_id} holds numbers that are not finite."
        return ModelSourceError(what, hint=tensors.CORRUPT)

    def _find(self, name: str) -> _Stored:
        tensor = self._tensors.get(self._alias(name))
        if tensor is None:
            raise ModelSourceError(f"The weights of {self._files.target_id} hold no tensor {name}.", hint=_REFETCH)
        return tensor

    def _alias(self, name: str) -> str:
        return EMBEDDINGS if name == HEAD and self._tied else name


def _open_gguf(path: Path, files: ModelFiles) -> dict[str, _Stored]:
    header = read_header(path, arrays=False)
    data = tensors.map_file(path)
    opened, family = {}, str(files.config["model_type"])
    for name, entry in header.tensors.items():
        theirs = hugging_face_name(name, family)
        known = None if theirs is None else tensors.known_name(theirs)
        if known is not None:  # others were refused when the cache entry was made, or are in its config.json
            raw = data[entry.offset : entry.offset + entry.size]
            raw = raw.reshape(*entry.shape[:-1], entry.stored.row_bytes(entry.shape[-1]))
            heads = paired_heads(name, files.config)
            is_offset = name.endswith("norm.weight") and ".ssm_" not in name
            offset = FAMILIES[family].norm_offset if is_offset else 0.0  # which the file has added
            if heads and entry.shape[0] % (2 * heads):
                raise header.wrong(f"has {entry.shape[0]} rows in {name}, which are no pairs of {heads} heads")
            opened[known] = _Stored(entry.stored, entry.shape, raw, heads, offset)
    return opened


def paired_heads(name: str, config: Mapping[str, Any]) -> int:
    """How many heads of paired rows GGUF's tensor `name` has; 0 where its rows are in transformers' order."""
    gguf = FAMILIES[str(config["model_type"])].gguf
    if gguf is None or not gguf.pairs_heads:
        return 0
    heads = int(config["num_attention_heads"])
    if ".attn_q." in name:
        return heads
    return int(config.get("num_key_value_heads") or heads) if ".attn_k." in name else 0


def unpair_rows(rows: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """[outputs, ...] from paired rows, 2i and 2i + 1 of transformers' i and i + head_dim / 2, to its order; a copy."""
    paired = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return np.ascontiguousarray(paired.swapaxes(1, 2)).reshape(rows.shape)


def paired_places(outputs: npt.NDArray[np.int64], count: int, heads: int) -> npt.NDArray[np.int64]:
    """Which rows of a matrix of `count` paired rows are these outputs, in transformers' order."""
    size = count // heads
    within = outputs % size
    places: npt.NDArray[np.int64] = outputs - within + within % (size // 2) * 2 + within // (size // 2)
    return places


def _open_safetensors(paths: Sequence[Path]) -> dict[str, _Stored]:
    found = {name: (path, tensor) for path in paths for name, tensor in tensors.map_tensors(path).items()}
    opened = {}
    for name, (path, tensor) in found.items():
        base = name.removesuffix(tensors.BLOCKS_END)
        if base != name and f"{base}{tensors.SCALES_END}" in found:
            opened[name] = _interpret_mxfp4(path, name, tensor, found[f"{base}{tensors.SCALES_END}"][1])
        elif f"{name.removesuffix(tensors.SCALES_END)}{tensors.BLOCKS_END}" not in found:
            base, stored = _interpret(path, name, tensor)
            opened[base] = stored
    text = {name for name in opened if name.startswith(_TEXT_PARTS)}
    if text:  # of a model that sees or hears too
        opened = {name: each for name, each in opened.items() if name in text or name.startswith((HEAD, "mtp."))}
    return {tensors.known_name(name): tensor for name, tensor in opened.items()}


def _interpret_mxfp4(path: Path, name: str, blocks: tensors.FileTensor, scales: tensors.FileTensor) -> _Stored:
    """gpt-oss's experts in MXFP4: U8 [experts, outputs, groups, 16] and [experts, outputs, groups]."""
    shape = blocks.shape[:3]
    if blocks.dtype != "U8" or scales.dtype != "U8" or len(blocks.shape) != 4 or blocks.shape != (*scales.shape, 16):
        what = f"is {blocks.dtype} {list(blocks.shape)}, with scales {list(scales.shape)}"
        raise ModelSourceError(f"The tensor {name} of {path} {what}.", hint=_REFETCH)
    source, own = blocks.data.reshape(*shape[:2], -1), scales.data.reshape(shape)
    return _Stored(tensors.BLOCKS["mxfp4"], (*shape[:2], 32 * shape[2]), source, scales=own)


MOST_EXPERTS = 4096  # of one layer: parts of more would be made for seconds before their shapes are looked at


def _apart(name: str, whole: _Stored, *, turned: bool) -> dict[str, _Stored]:
    parts = {}
    if ".experts." in name and whole.shape[0] > MOST_EXPERTS:
        raise ModelSourceError(f"The tensor {name} is of {whole.shape[0]} experts, at most {MOST_EXPERTS} are read.")
    for part, shape, take in tensors.expert_parts(name, whole.shape, turned=turned):
        if len(shape) == 1 and whole.stored not in _FLOATS.values():
            raise ModelSourceError(f"The tensor {name} is a bias in blocks, which moa does not read.", hint=_REFETCH)
        own = take if whole.scales is None else partial(tensors.take_mxfp4, take, whole.scales)
        parts[part] = _Stored(whole.stored, shape, whole.source, take=own)
    return parts or {name: whole}


def _in_order(name: str, whole: _Stored, orders: RowOrders) -> dict[str, _Stored]:
    """Parts of a matrix by their names, whose rows lie in turn; none: it is read as it is."""
    prefix, dot, stem = name.partition("_attn.")
    parts = {}
    for part, order in orders.get(stem, {}).items():
        count = sum(map(len, orders[stem].values()))
        if len(whole.shape) != 2 or whole.shape[0] != count:
            what = f"The tensor {name} has the shape {list(whole.shape)}, expected {count} rows."
            raise ModelSourceError(what, hint=_REFETCH)
        parts[f"{prefix}{dot}{part}"] = replace(whole, shape=(len(order), whole.shape[1]), order=order)
    return parts


def _interpret(path: Path, name: str, tensor: tensors.FileTensor) -> tuple[str, _Stored]:
    """A plain tensor, or a part in blocks: `NAME.q4_1`, `NAME.q6_k` and so on, uint8 [outputs, blocks, bytes]."""
    stored = _FLOATS.get(tensor.dtype)
    if stored is not None:
        shape = tensor.shape or (1,)
        return name, _Stored(stored, shape, tensor.data.reshape(*shape[:-1], stored.row_bytes(shape[-1])))
    base, _, kind = name.rpartition(".")
    blocks = tensors.BLOCKS.get(kind) if tensor.dtype == "U8" else None
    if blocks is None or len(tensor.shape) != 3 or tensor.shape[-1] != blocks.size:
        hint = "Use weights in float32, float16 or bfloat16, or a GGUF file."
        what = f"is {tensor.dtype} {list(tensor.shape)}, which moa does not read"
        raise ModelSourceError(f"The tensor {name} of {path} {what}.", hint=hint)
    outputs, groups, _ = tensor.shape
    return base, _Stored(blocks, (outputs, groups * blocks.values), tensor.data.reshape(outputs, groups * blocks.size))


def idle_share(config: Mapping[str, Any]) -> Fraction:
    """The part of all experts that a step of one row does not read; 0: the model has none."""
    count = config.get("num_experts") or config.get("num_local_experts") or 0
    chosen = config.get("num_experts_per_tok") or config.get("top_k_experts") or count
    return Fraction(count - chosen, count) if chosen < count else Fraction(0)


Precision = Literal["packed", "bf16"]
TEXT_FILES = ("config.json", GENERATION_CONFIG, *TOKENIZER_FILES)


def layer_names(files: ModelFiles, count: int) -> list[str]:
    """The tensors of the last decoder layers, and the final norm: with embeddings and head, what a client reads."""
    layers = layer_places(files, int(files.config["num_hidden_layers"]) - count)
    return [name for name in layers if name not in (EMBEDDINGS, HEAD)]


def layer_places(files: ModelFiles, first: int = 0) -> dict[str, str]:
    """Stored name -> name in a model of only the layers from `first` on."""
    count, places = int(files.config["num_hidden_layers"]), {}
    if not 0 <= first <= count:
        what = f"has {count} layers, requested were {count - first} of them"
        raise ModelSourceError(f"{files.target_id} {what}.", hint="Ask for fewer layers.")
    for name in WeightReader(files).names():
        if not name.startswith("model.layers."):
            if name not in tensors.ON_THE_SERVER:
                places[name] = name
            continue
        _, _, layer, rest = name.split(".", 3)
        if first <= int(layer) < count:
            places[name] = f"model.layers.{int(layer) - first}.{rest}"
    return places


def load_config(files: ModelFiles) -> PreTrainedConfig:
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    try:
        return cast("PreTrainedConfig", AutoConfig.from_pretrained(files.folder, local_files_only=True))
    except (StrictDataclassError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        what = f"The config.json of {files.target_id} makes no sense to transformers ({error})."
        raise ModelSourceError(what, hint=_REFETCH) from error


def load_target_model(files: ModelFiles, dtype: torch.dtype | None = None, *, shares: int = 1) -> PreTrainedModel:
    """The target in torch, in evaluation mode and without gradients; `dtype`: None: float32.

    `shares`: processes that share it by transformers' tensor-parallel plan, which have met (`torch.distributed`).
    """
    import torch
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING
    from transformers.distributed import DistributedConfig
    from transformers.utils import logging

    config, reader, dtype = load_config(files), WeightReader(files), dtype or torch.float32
    model_class = cast("type[PreTrainedModel]", MODEL_FOR_CAUSAL_LM_MAPPING[type(config)])
    logging.disable_progress_bar()  # the tensors are in memory: nothing is left to wait for
    places = layer_places(files)
    try:
        with torch.device("meta"):  # what lacks or does not fit would be made first, of whatever size
            expected = {name: tuple(each.shape) for name, each in model_class(config).named_parameters()}
        if missing := sorted(expected.keys() - places.values()):
            raise ValueError(f"{len(missing)} tensors are missing, {missing[0]} among them")
        for name, place in places.items():
            if (shape := reader.shape(name)) != expected.get(place, shape):
                raise ValueError(f"{name} has the shape {list(shape)}, expected {list(expected[place])}")
        state = {
            place: TensorOnDemand(reader, name, dtype) if shares > 1 else torch.from_numpy(reader.array(name)).to(dtype)
            for name, place in places.items()
        }
        model = model_class.from_pretrained(
            None,
            config=config,
            state_dict=state,
            dtype=dtype,
            attn_implementation="eager" if getattr(config, "attn_logit_softcapping", None) else "sdpa",  # has no caps
            distributed_config=DistributedConfig(tp_size=shares) if shares > 1 else None,
        )
    except (RuntimeError, ValueError) as error:
        what = f"The weights of {files.target_id} do not fit its config.json ({error})."
        raise ModelSourceError(what, hint=_REFETCH) from error
    return cast("PreTrainedModel", model.eval().requires_grad_(False))


class TensorOnDemand:
    """A tensor of which a part is to be read, as transformers asks it of safetensors; it is whole only meanwhile."""

    def __init__(self, reader: WeightReader, name: str, dtype: torch.dtype) -> None:
        self._reader, self._name, self._dtype = reader, name, dtype

    def get_shape(self) -> list[int]:
        return list(self._reader.shape(self._name))

    def __getitem__(self, index: Any) -> torch.Tensor:
        import torch

        whole = torch.from_numpy(self._reader.array(self._name))
        return whole[index].to(self._dtype, copy=True)
