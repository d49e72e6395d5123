"""Matrices packed for the kernels: made from GGUF's blocks by any number of threads, into memory that the caller gives.

Both sides may be mapped files. Tiles are the same for all variants of the library.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moa_kernels.bindings import (
    FLOAT32,
    GROUP,
    LANES,
    NO_MEMORY,
    NOT_FINITE,
    Q4_1,
    Q8_0,
    STORED_FLOATS,
    KernelError,
    address,
    aligned_zeros,
    format_of,
)
from moa_kernels.blocks import QuantisedMatrix, Rows
from moa_kernels.library import library

PLAIN = "float32"  # the kind of matrices that are not quantised
FROM_FLOATS = (Q8_0, Q4_1)  # what floats can be packed as
_FLOAT_BYTES = {PLAIN: 4, "f32": 4, "f16": 2, "bf16": 2}
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Tiles:
    """A packed matrix.

    `kind`: its format, or `PLAIN`. `memory`: `tile_bytes` bytes, best at a multiple of 64; they stay where they are for
    as long as this is used.
    """

    kind: str
    outputs: int
    inputs: int
    memory: Bytes

    def __post_init__(self) -> None:
        expected = tile_bytes(self.kind, self.outputs, self.inputs)
        if self.memory.nbytes != expected or self.memory.dtype != np.uint8 or not self.memory.flags.c_contiguous:
            raise KernelError(f"Tiles of {self.memory.nbytes} bytes came for a matrix whose tiles take {expected}.")

    @property
    def shape(self) -> tuple[int, int]:
        """(outputs, inputs)."""
        return self.outputs, self.inputs

    @property
    def number(self) -> int:
        return _number(self.kind)


def tile_count(outputs: int) -> int:
    """How many tiles a matrix takes: of 16 outputs each."""
    return -(-outputs // LANES)


def tile_bytes(kind: str, outputs: int, inputs: int) -> int:
    """Bytes of a matrix's tiles, which are all of one size."""
    loaded = library()
    if loaded is None:
        raise KernelError("Weights were to be packed without kernels.")
    divisor = GROUP if kind == PLAIN else format_of(kind).values
    if inputs % divisor or not inputs:
        raise KernelError(f"It has {inputs} inputs, which is no multiple of {divisor}.")
    return tile_count(outputs) * int(loaded.moa_tile_bytes(_number(kind), inputs))


def pack(
    kind: str, source: Bytes, outputs: int, inputs: int, into: Bytes,
    *, stored: str = "", heads: int = 0, tiles: range | None = None,
) -> None:  # fmt: skip
    """Packs a matrix, or some tiles of it, as `kind`; releases the interpreter lock. MemoryError: no room for a row.

    `source`: all rows as the file has them, in any shape; `into`: room for these tiles, and no others. `stored`: what
    the file has: "" for blocks of that kind (`PLAIN`: float32, which is not looked at), or one of `STORED_FLOATS`,
    which becomes Q8_0 or Q4_1. `heads`: not 0: the rows are those of so many heads in the pairs that GGUF has for
    Llama's queries and keys, and are brought into transformers' order. `tiles`: None: all; threads may pack different
    ones at once.
    """
    whole, count = tile_bytes(kind, outputs, inputs), tile_count(outputs)
    chosen = range(count) if tiles is None else tiles
    if chosen and not 0 <= chosen.start <= chosen.stop <= count:
        raise KernelError(f"The tiles {chosen} were asked for of {count}.")
    if stored and (stored not in STORED_FLOATS or kind not in FROM_FLOATS):
        raise KernelError(f"Weights in {stored} are not packed as {kind}.")
    expected = len(chosen) * (whole // count) if count else 0
    for name, memory, needed in (
        ("Rows", source, _stored_bytes(stored or kind, outputs, inputs)),
        ("Tiles", into, expected),
    ):
        if memory.nbytes != needed or not memory.flags.c_contiguous:
            raise KernelError(f"{name} of {memory.nbytes} bytes came for a matrix whose {name.lower()} take {needed}.")
    if heads and (outputs % heads or outputs // heads % 2):
        raise KernelError(f"{outputs} rows are no pairs of {heads} heads.")
    loaded = library()
    if loaded is None:
        raise KernelError("Weights were to be packed without kernels.")
    number = STORED_FLOATS[stored] if stored else _number(kind)
    sizes = (number, _number(kind), outputs, inputs, heads, chosen.start, chosen.stop)
    result = loaded.moa_pack(*sizes, address(source), address(into))
    if result == NO_MEMORY:
        raise MemoryError("There is no memory to pack a matrix.")
    if result == NOT_FINITE:
        raise KernelError("It holds numbers that are not finite, or too large for their scales.")


def packed(source: QuantisedMatrix | Rows) -> Tiles:
    if isinstance(source, QuantisedMatrix):
        kind, blocks = source.kind, np.ascontiguousarray(source.raw)
    else:
        kind, blocks = PLAIN, np.ascontiguousarray(source, np.float32).view(np.uint8)
    outputs, inputs = source.shape
    into = aligned_zeros(tile_bytes(kind, outputs, inputs))
    pack(kind, blocks, outputs, inputs, into)
    return Tiles(kind, outputs, inputs, into)


def _stored_bytes(stored: str, outputs: int, inputs: int) -> int:
    if stored in _FLOAT_BYTES:
        return outputs * inputs * _FLOAT_BYTES[stored]
    return outputs * inputs // format_of(stored).values * format_of(stored).size


def _number(kind: str) -> int:
    return FLOAT32 if kind == PLAIN else format_of(kind).number
