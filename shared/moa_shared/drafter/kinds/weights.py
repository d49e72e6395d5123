"""How a drafter computes, and where its weights come from: its checkpoint, mapped, and packed parts of the target."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from moa_kernels import (
    F16,
    F32,
    GROUP,
    KernelError,
    Layer,
    Linear,
    QuantisedMatrix,
    Rotary,
    Stack,
    StackShape,
    Tiles,
    in_four_bits,
    norm,
    quantised,
)
from moa_kernels.blocks import joined
from moa_kernels.blocks import norm as numpy_norm

from moa_shared.errors import ConfigError, ModelSourceError
from moa_shared.models.network.families import EARLIEST
from moa_shared.models.network.network import Weights, read_layer
from moa_shared.models.network.plan import Plan, plan_of
from moa_shared.models.storage.tensors import EMBEDDINGS, HEAD, NUMPY_TYPES, FileTensor, drop_pages
from moa_shared.protocol.memory_codec import widen_bfloat16

Rows = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64] | Sequence[int]

INT8, INT4, FLOAT32 = "int8", "int4", "float32"
WEIGHTS = (INT8, INT4, FLOAT32)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    plain: bool  # in float32; else weights in blocks as the target's file has them, others as Q8_0, activations in int8
    in_numpy: bool  # without the kernels, in float32 and slowly
    # all matrices as Q4_1: a drafter's step takes a fifth less time, and it is right a little less often
    four_bits: bool = False

    @classmethod
    def of(cls, weights: str, sizes: Iterable[int]) -> Arithmetic:
        if weights not in WEIGHTS:
            raise ConfigError(f"There are no drafter weights {weights!r}.", hint=f"Give {' or '.join(WEIGHTS)}.")
        return cls(weights == FLOAT32, any(size % GROUP for size in sizes), weights == INT4)

    @property
    def kv(self) -> str:
        """How keys and values are kept. float16 is far more exact than 8-bit products, and half of float32's memory."""
        return F32 if self.plain else F16

    def linear(self, weights: Sequence[QuantisedMatrix | Tiles | Rows], bias: Rows | None = None) -> Linear:
        if self.four_bits and not self.in_numpy:
            weights = [matrix if isinstance(matrix, Tiles) else in_four_bits(matrix) for matrix in weights]
        return Linear(weights, bias, plain=self.plain, reference=self.in_numpy)

    def stack(self, shape: StackShape, layers: Sequence[Layer], rotary: Rotary | Sequence[Rotary]) -> Stack:
        return Stack(shape, layers, rotary, reference=self.in_numpy)

    def norm(self, rows: Rows, weight: Rows, eps: float) -> Rows:
        return numpy_norm(rows, weight, eps) if self.in_numpy else norm(rows, weight, eps)


DRAFT_IDS = "draft_ids"  # exact in float32 up to 16 million tokens
_HEAD_ROWS = 4096  # rows of a head in float32 at once: bounds what is held next to the packed ones


class ArrayWeights(Mapping[str, npt.NDArray[Any]]):
    """Tensors by name, in memory or read from a file when asked for: floats as float32, integers as int32.

    The file's own pages are not kept. ValueError: it is of a type that is not read.
    """

    _tensors: Mapping[str, npt.NDArray[Any] | FileTensor]

    def __init__(self, tensors: Mapping[str, npt.NDArray[Any] | FileTensor]) -> None:
        self._tensors = tensors._tensors if isinstance(tensors, ArrayWeights) else tensors
        for name, tensor in self._tensors.items():
            if isinstance(tensor, FileTensor) and tensor.dtype not in NUMPY_TYPES:
                raise ValueError(f"{name} is {tensor.dtype}")

    def names(self) -> Collection[str]:
        return self._tensors.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._find(name).shape

    def blocks(self, name: str) -> QuantisedMatrix | None:
        return None

    def array(self, name: str) -> Rows:
        return np.asarray(self[name], np.float32)

    def rows(self, name: str, ids: Ids) -> Rows:
        return np.asarray(self._read(name, np.asarray(ids)), np.float32)

    def _find(self, name: str) -> npt.NDArray[Any] | FileTensor:
        if name not in self._tensors:
            raise ModelSourceError(f"The weights hold no tensor {name}.")
        return self._tensors[name]

    def _read(self, name: str, chosen: npt.NDArray[Any] | slice) -> npt.NDArray[Any]:
        tensor = self._find(name)
        if not isinstance(tensor, FileTensor):
            return tensor[chosen]
        values = tensor.data.view(NUMPY_TYPES[tensor.dtype]).reshape(tensor.shape)[chosen]
        if tensor.dtype == "BF16":
            return widen_bfloat16(values)
        return values.astype(np.float32 if values.dtype.kind == "f" else np.int32)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        wide, tensor = self._read(name, slice(None)), self._find(name)
        if isinstance(tensor, FileTensor):
            drop_pages(tensor.data)
        return wide

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors


def read_head(weights: Weights, ids: Ids | None, arithmetic: Arithmetic) -> Linear:
    """The output weights of these tokens; None: of all."""
    blocks = weights.blocks(HEAD)
    if isinstance(blocks, QuantisedMatrix):
        return arithmetic.linear([blocks if ids is None else blocks.rows(ids)])
    if blocks is not None and ids is None:
        return arithmetic.linear([blocks])
    chosen = np.arange(weights.shape(HEAD)[0]) if ids is None else np.asarray(ids)
    if arithmetic.plain or arithmetic.in_numpy:
        return arithmetic.linear([weights.rows(HEAD, chosen)])
    batches = range(0, len(chosen), _HEAD_ROWS)
    parts = [quantised(weights.rows(HEAD, chosen[start : start + _HEAD_ROWS])) for start in batches]
    return arithmetic.linear([joined(parts)])


def draft_ids(own: Weights) -> npt.NDArray[np.int64] | None:
    """The target's token of each column of a drafter's logits; None: the same."""
    return own.array(DRAFT_IDS).astype(np.int64) if DRAFT_IDS in own.names() else None


def check_tables(
    weights: Weights, vocab_size: int, hidden_size: int, names: Sequence[str] = (EMBEDDINGS, HEAD)
) -> None:
    """Raises ModelSourceError if embeddings or head have other shapes than a drafter needs."""
    for name in names:
        shape = weights.shape(name)
        if shape != (vocab_size, hidden_size):
            what = f"has the shape {list(shape)}, the drafter needs {[vocab_size, hidden_size]}"
            hint = "Give a drafter that was trained for this target."
            raise ModelSourceError(f"{name} of the target {what}.", hint=hint)


class TargetParts:
    """Layers and head of one target.

    `packed`: its weights, some of them packed and mapped, for arithmetic that takes them so. `context`: the most
    positions of the server's texts, by which it chose longrope's factors; 0: as many as the model was made for.
    """

    def __init__(self, target: Weights, packed: Weights | None = None, context: int = 0) -> None:
        self._target = target
        self._packed = packed or target
        # What the layers compute; None: they are of Llama's form, with the sizes that the drafter names.
        self.plan: Plan | None = None
        config: Mapping[str, Any] | None = getattr(target, "config", None)
        if config is not None and (config.get("model_type") not in EARLIEST or config.get("use_sliding_window")):
            self.plan = plan_of(config, context)
        self._layers: dict[tuple[int, Arithmetic], Layer] = {}
        self._heads: dict[tuple[bytes, Arithmetic], Linear] = {}

    def layers(self, numbers: Iterable[int], arithmetic: Arithmetic) -> list[Layer]:
        weights, plan, layers = self._weights(arithmetic), self.plan, []
        for number in numbers:
            if (key := (number, arithmetic)) not in self._layers:
                if plan is not None and (reason := plan.why_not_alone(number)):
                    raise KernelError(f"A device does not run the last layers of this target: {reason}.")
                form: dict[str, Any] = {} if plan is None else {"family": plan.family, "plan": plan.layers[number]}
                self._layers[key] = read_layer(weights, f"model.layers.{number}", arithmetic.linear, **form)
            layers.append(self._layers[key])
        return layers

    def head(self, ids: npt.NDArray[np.int64] | None, arithmetic: Arithmetic) -> Linear:
        """The output weights of these tokens; None: of all."""
        key = (b"" if ids is None else ids.tobytes(), arithmetic)
        if key not in self._heads:
            self._heads[key] = read_head(self._weights(arithmetic), ids, arithmetic)
        return self._heads[key]

    def _weights(self, arithmetic: Arithmetic) -> Weights:
        as_it_is = arithmetic.plain or arithmetic.in_numpy or arithmetic.four_bits
        return self._target if as_it_is else self._packed
