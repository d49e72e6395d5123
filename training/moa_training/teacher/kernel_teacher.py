"""The target on the kernels as a teacher: the arithmetic that is served, and on most CPUs the faster one.

Conversations of a packed row are sessions of one forward, so none sees another. State: the target's weights, in torch
for the reused layers that gradients go through and in int8 for what is only computed forwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from moa_kernels import Segment
from moa_shared.models import ModelFiles, load_target_model
from moa_shared.models.network.network import Network
from moa_shared.models.weights.weights import WeightReader
from moa_shared.programs.progress import Progress

from moa_training.data.packing import PackedBatch
from moa_training.objective.network import Activations
from moa_training.teacher.teacher import Teacher


class KernelTeacher(Teacher):
    """A teacher whose forwards run on the level int8.

    Args:
        network: the same target as `model`.
    """

    def __init__(self, model: Any, network: Network, reused_layers: int, entries: Sequence[int] = ()) -> None:
        super().__init__(model, reused_layers, entries)
        self._network = network

    @classmethod
    def load_int8(
        cls,
        files: ModelFiles,
        reused_layers: int,
        dtype: torch.dtype,
        device: torch.device,
        progress: Progress,
        entries: Sequence[int] = (),
    ) -> KernelTeacher:
        """Raises ModelSourceError: a target that the kernels do not compute."""
        network = Network(WeightReader(files), files.config, progress)
        return cls(load_target_model(files, dtype).to(device), network, reused_layers, entries)

    @torch.no_grad()
    def run_packed(self, batch: PackedBatch) -> Activations:
        rows = [self._run_row(ids, segment) for ids, segment in zip(batch.ids.cpu(), batch.segment.cpu(), strict=True)]
        kv, hidden, states = (torch.stack(parts).to(batch.ids.device) for parts in zip(*rows, strict=True))
        return Activations(
            self.embeddings[batch.ids],
            kv,
            hidden,
            states[:, :, -1] if self.reused_layers else None,
            batch.positions,
            entries=states[:, :, : len(self.entries)] if self.entries else None,
        )

    def _run_row(self, ids: torch.Tensor, segment: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Keys and values, last hidden states, and the states asked for of one row; zeros where it is padding."""
        network, dtype = self._network, self.embeddings.dtype
        lengths = np.unique(segment[segment >= 0].numpy(), return_counts=True)[1].tolist()
        used = sum(lengths)
        caches = [network.new_cache() for _ in lengths]
        segments = [Segment.chain(cache, length) for cache, length in zip(caches, lengths, strict=True)]
        wanted = [*self.entries, self.layers - self.reused_layers]
        out, entering = network.hidden(ids[:used].tolist(), segments, sorted({*wanted} - {self.layers}))
        entering[self.layers] = out
        for cache, length in zip(caches, lengths, strict=True):
            cache.length = length
        kv = [cache.read(0, length)[:, : self.kv_layers] for cache, length in zip(caches, lengths, strict=True)]
        parts = (np.concatenate(kv), network.normed(out), np.stack([entering[layer] for layer in wanted], 1))
        padded = []
        for part in parts:
            whole = torch.zeros(len(ids), *part.shape[1:], dtype=dtype)
            whole[:used] = torch.from_numpy(part).to(dtype)
            padded.append(whole)
        return padded[0], padded[1], padded[2]
