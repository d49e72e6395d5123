"""The variants that this CPU runs, and what rounds activations as they do."""

from __future__ import annotations

import platform

import numpy as np
from moa_kernels import Q4_1, QuantisedMatrix
from moa_kernels.library import present, probe
from moa_kernels.variants import LIBRARIES, variants_of

HERE = [
    variant.name
    for variant in variants_of(platform.machine())
    if variant.name in present(LIBRARIES) and probe(LIBRARIES) & variant.bit
]


def random_matrix(random: np.random.Generator, kind: str, outputs: int, inputs: int) -> QuantisedMatrix:
    """Any codes, with scales of either sign."""
    groups = inputs // 32
    scales = random.uniform(-0.02, 0.02, (outputs, groups, 2 if kind == Q4_1 else 1)).astype(np.float16)
    if kind == Q4_1:
        codes = random.integers(0, 256, (outputs, groups, 16), np.uint8)
    else:
        codes = random.integers(-127, 128, (outputs, groups, 32), np.int8).view(np.uint8)
    return QuantisedMatrix(kind, np.concatenate([scales.view(np.uint8), codes], axis=-1))


def rounded(rows: np.ndarray) -> np.ndarray:
    """[rows, inputs] as the kernels see activations: int8 with a scale for each 32 of them; in float64."""
    groups = rows.reshape(len(rows), -1, 32)
    largest = np.maximum(np.abs(groups).max(-1, keepdims=True), np.float32(1e-12))
    codes = np.rint(groups * (np.float32(127) / largest))
    scales = (largest / np.float32(127)).astype(np.float64)
    values: np.ndarray = (codes.astype(np.float64) * scales).reshape(rows.shape)
    return values
