"""A target over transformers: the levels float32 (the reference) and bf16 (GPUs).

It runs transformers' own decoder layers in its own loop, which gives what a verification needs and `model.forward` does
not: a mask of ancestors, positions by depth, the state that enters a chosen layer, and the head on chosen rows only.
State: the model, not changed after the start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from moa_shared.drafter import Checkpoint
from moa_shared.errors import InternalError
from moa_shared.models.network.family import check_family
from moa_shared.models.weights.packed_linear import pack_linears
from torch import nn
from transformers import PreTrainedModel

from moa_server.target import attention
from moa_server.target.arrays import Rows, as_array, over_arrays
from moa_server.target.target import Request, Target, TargetOutput, TargetShape, is_chain
from moa_server.target.torch_cache import TorchCache


class TorchTarget(Target):
    """The verifier in torch.

    Args:
        model: a Llama, Qwen2 or Qwen3 causal LM in evaluation mode. It is taken over: its attention becomes ours, and
            in bfloat16 on a CPU its weights are packed, after which it runs but cannot be saved.
        context_length: the most positions a conversation may have; None: what the model was trained for.

    Raises:
        ModelSourceError: a model that is not computed exactly here (another family, sliding windows).
    """

    def __init__(self, model: PreTrainedModel, context_length: int | None = None) -> None:
        config = model.config
        check_family(config.to_dict(), type(model).__name__)
        attention.register()
        model.set_attn_implementation(attention.NAME)
        dtype, device = model.dtype, model.device
        pack_linears(model.requires_grad_(False))
        parts = cast(Any, model)  # transformers' classes share these names but no type that has them
        self._layers = list(parts.model.layers)
        self._embed: nn.Module = parts.model.embed_tokens
        self._norm: nn.Module = parts.model.norm
        self._head: nn.Module = parts.lm_head
        self._rotary: nn.Module = parts.model.rotary_emb
        self.model = model
        self.dtype: torch.dtype = dtype
        self.device: torch.device = device
        heads, hidden = int(config.num_attention_heads), int(config.hidden_size)
        trained = int(config.max_position_embeddings)
        super().__init__(
            TargetShape(
                int(config.vocab_size),
                hidden,
                len(self._layers),
                int(config.num_key_value_heads),
                int(getattr(config, "head_dim", None) or hidden // heads),
                trained if context_length is None else min(context_length, trained),
            )
        )

    def new_cache(self) -> TorchCache:
        return TorchCache(self.layer_count, self.kv_heads, self.head_dim, dtype=self.dtype, device=self.device)

    def free_bytes(self) -> int:
        return torch.cuda.mem_get_info(self.device)[0] if self.device.type == "cuda" else super().free_bytes()

    def _run(self, requests: Sequence[Request], depths: Sequence[Sequence[int]]) -> list[TargetOutput]:
        """Runs one conversation after the other: torch's kernels take no ragged rows."""
        return [self._run_one(request, of_request) for request, of_request in zip(requests, depths, strict=True)]

    def _run_one(self, request: Request, depths: Sequence[int]) -> TargetOutput:
        cache = request.cache
        if not isinstance(cache, TorchCache):
            raise InternalError("A forward of torch was given another backend's cache.")
        parents = None if is_chain(request.parents) else request.parents
        with torch.inference_mode():  # 4 % faster than no_grad on one core
            state, hidden = self._run_layers(cache, request.tokens, parents, depths, request.state_layer)
            normed = self._norm(hidden[torch.tensor(request.logits_for, dtype=torch.long, device=self.device)])
            logits = self._head(normed)
        return TargetOutput(as_array(logits), as_array(normed), None if state is None else as_array(state))

    def memory_rows(self, drafter: Checkpoint) -> Callable[[Rows], Rows]:
        return self.over_arrays(drafter.torch_rows(self.dtype, self.device))

    def normed(self, state: Rows) -> Rows:
        return self.over_arrays(self._norm)(state)

    def over_arrays(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Rows], Rows]:
        """Wraps a function over tensors of the target's dtype and device as one over float32 arrays."""
        return over_arrays(function, self.dtype, self.device)

    def _run_layers(
        self,
        cache: TorchCache,
        tokens: Sequence[int],
        parents: Sequence[int] | None,
        depths: Sequence[int],
        want_state_layer: int | None,
    ) -> tuple[torch.Tensor | None, torch.Tensor]:
        """The state that enters the layer wanted, and the one that leaves the last; both [tokens, hidden_size]."""
        prefix = cache.length
        hidden = self._embed(torch.tensor([tokens], device=self.device))  # [1, tokens, hidden_size]
        positions = torch.tensor([depths], device=self.device) + prefix
        rotary = self._rotary(hidden, positions)
        mask = attention.attention_mask(prefix, parents, len(tokens), self.dtype, self.device)
        state = None
        for index, layer in enumerate(self._layers):
            if index == want_state_layer:
                state = hidden[0]
            hidden = layer(hidden, attention_mask=mask, position_embeddings=rotary, past_key_values=cache)
        return hidden[0] if want_state_layer == self.layer_count else state, hidden[0]
