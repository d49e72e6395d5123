"""Kernels for language models on CPUs: 4- and 8-bit weights, integer products, rows that are exact in any batch."""

from moa_kernels.bindings import F16, F32, FORMATS, GROUP, KV_FORMATS, PAGE_ROWS, Q4_1, Q8_0, KernelError
from moa_kernels.blocks import QuantisedMatrix, in_four_bits, quantised
from moa_kernels.library import explain, guard, populate, set_threads, threads, variant_name
from moa_kernels.linear import Linear, cap, norm
from moa_kernels.rotary import Rotary
from moa_kernels.tiles import PLAIN, Tiles, pack, tile_bytes, tile_count
from moa_kernels.transformer.cache import Cache, Heads
from moa_kernels.transformer.layer import (
    BesideNorms,
    DeltaNet,
    Experts,
    Layer,
    LayerEmbedding,
    SharedExpert,
    StackShape,
)
from moa_kernels.transformer.pages import Page
from moa_kernels.transformer.segment import Segment
from moa_kernels.transformer.stack import Stack
from moa_kernels.transformer.states import Snapshot, StateShape

ARITHMETIC = 2  # raised when a change of the kernels gives other bits: texts of both are not to be mixed

__all__ = [
    "ARITHMETIC",
    "F16",
    "F32",
    "FORMATS",
    "GROUP",
    "KV_FORMATS",
    "PAGE_ROWS",
    "PLAIN",
    "Q4_1",
    "Q8_0",
    "BesideNorms",
    "Cache",
    "DeltaNet",
    "Experts",
    "Heads",
    "KernelError",
    "Layer",
    "LayerEmbedding",
    "Linear",
    "Page",
    "QuantisedMatrix",
    "Rotary",
    "Segment",
    "SharedExpert",
    "Snapshot",
    "Stack",
    "StackShape",
    "StateShape",
    "Tiles",
    "cap",
    "explain",
    "guard",
    "in_four_bits",
    "norm",
    "pack",
    "populate",
    "quantised",
    "set_threads",
    "threads",
    "tile_bytes",
    "tile_count",
    "variant_name",
]
