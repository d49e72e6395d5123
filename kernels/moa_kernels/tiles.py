"""Matrices packed for the kernels: made from GGUF's blocks by any number of threads, into memory that the caller gives.

Both sides may be mapped files. Tiles are the same for all variants of the library.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moa_kernels.bindings import FLOAT32, LANES, address, aligned_zeros
from moa_kernels.blocks import QuantisedMatrix, Rows
from moa_kernels.errors import KernelError
from moa_kernels.formats import GROUP, format_of
from moa_kernels.library import library

PLAIN = "float32"  # the kind of matrices that are not quantised
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Tiles:
    """A packed matrix.

    Args:
        kind: its format, or `PLAIN`.
        memory: `tile_bytes` bytes, best at a multiple of 64; they stay where they are for as long as this is used.

    Raises:
        KernelError: memory of another size.
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
        """Of the format, for the library."""
        return _number(self.kind)


def tile_count(outputs: int) -> int:
    """How many tiles a matrix takes: of 16 outputs each."""
    return -(-outputs // LANES)


def tile_bytes(kind: str, outputs: int, inputs: int) -> int:
    """Bytes of a matrix's tiles, which are all of one size.

    Raises:
        KernelError: a kind that the kernels do not compute with, inputs that are no whole blocks, or no kernels.
    """
    loaded = library()
    if loaded is None:
        raise KernelError("Weights were to be packed without kernels.")
    divisor = GROUP if kind == PLAIN else format_of(kind).values
    if inputs % divisor:
        raise KernelError(f"It has {inputs} inputs, which is no multiple of {divisor}.")
    return tile_count(outputs) * int(loaded.moa_tile_bytes(_number(kind), inputs))


def pack(
    kind: str, blocks: Bytes, outputs: int, inputs: int, into: Bytes, *, heads: int = 0, tiles: range | None = None
) -> None:
    """Packs a matrix, or some tiles of it; releases the interpreter lock. Scales are not looked at here.

    Args:
        blocks: all rows as GGUF stores them (`PLAIN`: float32), in any shape.
        into: room for all tiles, `tile_bytes` of them.
        heads: not 0: the rows are those of so many heads in the pairs that GGUF has for Llama's queries and keys, and
            are brought into transformers' order.
        tiles: which; None: all. Threads may pack different ones at once.

    Raises:
        KernelError: memory of another size, rows that are no such heads, tiles that the matrix does not have.
    """
    expected = tile_bytes(kind, outputs, inputs)
    stored = (
        outputs * inputs * 4 if kind == PLAIN else outputs * inputs // format_of(kind).values * format_of(kind).size
    )
    for name, memory, needed in (("Blocks", blocks, stored), ("Tiles", into, expected)):
        if memory.nbytes != needed or not memory.flags.c_contiguous:
            raise KernelError(f"{name} of {memory.nbytes} bytes came for a matrix whose {name.lower()} take {needed}.")
    if heads and (outputs % heads or outputs // heads % 2):
        raise KernelError(f"{outputs} rows are no pairs of {heads} heads.")
    chosen = range(tile_count(outputs)) if tiles is None else tiles
    if chosen and not 0 <= chosen.start <= chosen.stop <= tile_count(outputs):
        raise KernelError(f"The tiles {chosen} were asked for of {tile_count(outputs)}.")
    loaded = library()
    if loaded is None:
        raise KernelError("Weights were to be packed without kernels.")
    loaded.moa_pack(_number(kind), outputs, inputs, heads, chosen.start, chosen.stop, address(blocks), address(into))


def packed(source: QuantisedMatrix | Rows) -> Tiles:
    """A matrix in tiles of its own; floats stay floats."""
    if isinstance(source, QuantisedMatrix):
        kind, blocks = source.kind, np.ascontiguousarray(source.raw)
    else:
        kind, blocks = PLAIN, np.ascontiguousarray(source, np.float32).view(np.uint8)
    outputs, inputs = source.shape
    into = aligned_zeros(tile_bytes(kind, outputs, inputs))
    pack(kind, blocks, outputs, inputs, into)
    return Tiles(kind, outputs, inputs, into)


def _number(kind: str) -> int:
    return FLOAT32 if kind == PLAIN else format_of(kind).number
