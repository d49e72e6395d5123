"""Functions of rows in numpy and float32, for devices without kernels; the kernels are tested against them."""

import numpy as np

from moa_kernels.blocks import Rows
from moa_kernels.formats import GROUP


def norm(rows: Rows, weight: Rows, eps: float) -> Rows:
    """Root-mean-square norm over the last axis."""
    squares = (rows * rows).mean(axis=-1, keepdims=True, dtype=np.float32)
    out: Rows = rows / np.sqrt(squares + np.float32(eps)) * weight
    return out


def capped(rows: Rows, most: float) -> Rows:
    """most tanh(x / most) of each number."""
    out: Rows = np.tanh(rows / np.float32(most)) * np.float32(most)
    return out


def rounded(rows: Rows) -> Rows:
    """Rows as the kernels see activations: int8 with a scale for each 32 of them."""
    groups = rows.reshape(len(rows), -1, GROUP)
    largest = np.maximum(np.abs(groups).max(axis=-1, keepdims=True), np.float32(1e-12))
    codes = np.rint(groups * (np.float32(127) / largest))
    out: Rows = (codes * (largest / np.float32(127))).reshape(rows.shape)
    return out
