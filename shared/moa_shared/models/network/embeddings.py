"""What layers of Gemma 4 add of their own for each token: a row of a table, and a projection of what enters the model.

State: weights only; of the table only rows of tokens are read. Invariant: a row's bits do not depend on the others.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from moa_kernels import KernelError, Linear, norm

from moa_shared.models.network.layers import MakeLinear, Rows, Weights, read_matrix
from moa_shared.models.weights.weights import LAYER_EMBEDDINGS, LAYER_PROJECTION, LAYER_PROJECTION_NORM


class LayerEmbeddings:
    """The embeddings of all layers.

    Args:
        width: of one layer's.

    Raises:
        KernelError: weights of other shapes.
    """

    def __init__(self, weights: Weights, make_linear: MakeLinear, layers: int, width: int, eps: float) -> None:
        self._weights, self._width, self._eps = weights, width, eps
        self._kept: npt.NDArray[np.int64] = np.arange(layers)
        for name in (LAYER_EMBEDDINGS, LAYER_PROJECTION):
            outputs = weights.shape(name)[1 if name == LAYER_EMBEDDINGS else 0]
            if outputs != layers * width:
                raise KernelError(f"{name} has {outputs} numbers for {layers} layers, expected {layers * width}.")
        self._projection: Linear = make_linear([read_matrix(weights, LAYER_PROJECTION)], None)
        self._norm = weights.array(LAYER_PROJECTION_NORM)
        if self._norm.shape != (width,):
            raise KernelError(f"{LAYER_PROJECTION_NORM} has the shape {self._norm.shape}, expected ({width},).")

    def of_layers(self, kept: Sequence[int]) -> LayerEmbeddings:
        """The embeddings of some layers, over the same weights."""
        chosen = copy.copy(self)
        chosen._kept = self._kept[list(kept)]
        return chosen

    def __call__(self, tokens: Sequence[int], entering: Rows) -> Rows:
        """[rows, layers, width] of tokens, and the rows that enter the first layer."""
        size = (len(tokens), -1, self._width)
        own = self._weights.rows(LAYER_EMBEDDINGS, tokens).reshape(size)[:, self._kept]
        projected = self._projection(entering) * np.float32(self._projection.inputs**-0.5)
        projected = projected.reshape(size)[:, self._kept].reshape(-1, self._width)
        normed = norm(projected, self._norm, self._eps).reshape(own.shape)
        added: Rows = (normed + own * np.float32(self._width**0.5)) * np.float32(0.5**0.5)
        return added
