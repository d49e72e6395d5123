"""The variants that this CPU runs, and what rounds activations as they do."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import numpy as np
from moa_kernels import FORMATS, QuantisedMatrix
from moa_kernels.library import FOLDER_VARIABLE, present, probe
from moa_kernels.variants import LIBRARIES, variants_of

FOLDER = Path(os.environ.get(FOLDER_VARIABLE) or LIBRARIES)
HERE = [
    variant.name
    for variant in variants_of(platform.machine())
    if variant.name in present(FOLDER) and probe(FOLDER) & variant.bit
]


def random_matrix(random: np.random.Generator, kind: str, outputs: int, inputs: int) -> QuantisedMatrix:
    """Any codes, with scales of either sign."""
    stored = FORMATS[kind]
    raw = random.integers(0, 256, (outputs, inputs // stored.values, stored.size), np.uint8)
    for at in stored.halves:
        scales = random.uniform(-0.02, 0.02, (*raw.shape[:2], 1)).astype(np.float16)
        raw[..., at : at + 2] = scales.view(np.uint8)
    if stored.exponent is not None:
        raw[..., stored.exponent] = random.integers(0, 130, raw.shape[:2])
    return QuantisedMatrix(kind, raw)


def rounded(rows: np.ndarray) -> np.ndarray:
    """[rows, inputs] as the kernels see activations: int8 with a scale for each 32 of them; in float64."""
    groups = rows.reshape(len(rows), -1, 32)
    largest = np.maximum(np.abs(groups).max(-1, keepdims=True), np.float32(1e-12))
    codes = np.rint(groups * (np.float32(127) / largest))
    scales = (largest / np.float32(127)).astype(np.float64)
    values: np.ndarray = (codes.astype(np.float64) * scales).reshape(rows.shape)
    return values
