"""The frozen target as a teacher: what it computes for packed rows.

State: the target's weights, frozen. Any causal model of transformers that caches keys and values per layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from moa_shared.models import ModelFiles
from torch import nn

from moa_training.data.packing import PackedBatch
from moa_training.objective.blocks import Blocks
from moa_training.objective.network import Activations, run_behind


class Teacher:
    """The target as a teacher.

    Args:
        model: transformers causal LM, in evaluation mode.
        reused_layers: N; the state that enters the first of them is recorded.
        entries: of the target's hidden states, to be recorded; keys and values then are only if layers are reused.
    """

    def __init__(self, model: Any, reused_layers: int, entries: Sequence[int] = ()) -> None:
        self.model = model
        self.reused_layers = reused_layers
        self.entries = tuple(entries)
        self.layers = len(model.model.layers)

    @classmethod
    def load(
        cls,
        files: ModelFiles,
        reused_layers: int,
        dtype: torch.dtype,
        device: torch.device,
        entries: Sequence[int] = (),
    ) -> Teacher:
        from moa_shared.models import load_target_model  # and with it all of transformers

        return cls(load_target_model(files, dtype).to(device), reused_layers, entries)

    @property
    def kv_layers(self) -> int:
        """Layers whose keys and values are recorded."""
        return self.layers if self.reused_layers or not self.entries else 0

    @property
    def embeddings(self) -> torch.Tensor:
        """[vocab, hidden]."""
        weight: torch.Tensor = self.model.model.embed_tokens.weight
        return weight

    @property
    def head(self) -> torch.Tensor:
        """[vocab, hidden]."""
        weight: torch.Tensor = self.model.lm_head.weight
        return weight

    @property
    def final_norm(self) -> nn.Module:
        norm: nn.Module = self.model.model.norm
        return norm

    @property
    def reused(self) -> list[nn.Module]:
        """The last N layers."""
        return list(self.model.model.layers[self.layers - self.reused_layers :]) if self.reused_layers else []

    @torch.no_grad()
    def run(self, ids: torch.Tensor, positions: torch.Tensor, visible: torch.Tensor | None) -> Activations:
        """Activations of [rows, length] tokens.

        Args:
            visible: [rows, length, length] bool, who sees whom; None: each row is one conversation.
        """
        states: dict[int, torch.Tensor] = {}
        first = self.layers - self.reused_layers
        readers = [*self.model.model.layers, self.final_norm]
        hooks = [
            readers[entry].register_forward_pre_hook(lambda _, inputs, at=entry: states.update({at: inputs[0]}))
            for entry in {*self.entries, *([first] if self.reused_layers else [])}
        ]
        try:
            mask = None if visible is None else visible[:, None]
            out = self.model.model(input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=True)
        finally:
            for hook in hooks:
                hook.remove()
        held = out.past_key_values.layers
        shape = (*ids.shape, self.kv_layers, held[0].keys.shape[1], 2, held[0].keys.shape[3])
        kv = held[0].keys.new_empty(shape)  # [rows, length, layers, kv heads, 2, head_dim]
        for index, layer in enumerate(held[: self.kv_layers]):
            kv[:, :, index, :, 0] = layer.keys.transpose(1, 2)
            kv[:, :, index, :, 1] = layer.values.transpose(1, 2)
        return Activations(
            self.embeddings[ids],
            kv.flatten(3),
            out.last_hidden_state,
            states[first] if self.reused_layers else None,
            positions,
            entries=torch.stack([states[entry] for entry in self.entries], 2) if self.entries else None,
        )

    @torch.no_grad()
    def run_behind(self, target: Activations, ids: torch.Tensor, blocks: Blocks) -> Activations:
        """What it computes of other tokens behind block starts, [rows, length], each block after the text before it.

        Args:
            target: of the text.
        """
        guessed, layers = self.embeddings[ids], self.model.model.layers
        cos, sin = (part[:, None] for part in self.model.model.rotary_emb(guessed, target.positions))
        first = self.layers - self.reused_layers
        head_dim = cos.shape[-1]
        state = run_behind(layers[:first], guessed, target.kv[:, :, :first], head_dim, blocks, cos, sin)
        last = run_behind(layers[first:], state, target.kv[:, :, first:], head_dim, blocks, cos, sin)
        own_state = state if self.reused_layers else None
        return replace(target, last_hidden=self.final_norm(last), state=own_state, guessed=guessed)

    def run_packed(self, batch: PackedBatch) -> Activations:
        """Activations of packed rows; no conversation sees another."""
        length = batch.ids.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=batch.ids.device).tril()
        return self.run(batch.ids, batch.positions, batch.same_segment & causal)
