"""A target over transformers: the levels float32 (the reference) and bf16 (GPUs), on a CPU or on CUDA.

It runs transformers' own decoder layers over the rows of all conversations at once, which gives what a verification
needs and `model.forward` does not: ragged rows, a mask of ancestors, positions by depth, the state that enters a chosen
layer, and the head on chosen rows only. State: the model, not changed after the start; the pages of keys and values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from itertools import accumulate
from threading import Lock
from typing import Any, cast

import torch
from moa_shared.drafter.checkpoint.checkpoint import Checkpoint
from moa_shared.errors import InternalError
from moa_shared.models.network.plan import Plan
from moa_shared.models.network.served import check_torch, torch_plan
from moa_shared.programs.machine import free_memory_bytes
from torch import nn
from transformers import PreTrainedModel

from moa_server.verifier.attention import (
    NAME,
    Attention,
    AttentionShape,
    Forward,
    Layers,
    Record,
    SessionAttention,
    register,
)
from moa_server.verifier.pool import (
    BatchPart,
    PagedCache,
    PagePool,
    Rows,
    Run,
    as_array,
    bucket,
    in_order,
    lay_out,
    over_arrays,
)
from moa_server.verifier.target import (
    KV_SHARE,
    KVCache,
    Request,
    Target,
    TargetOutput,
    TargetShape,
    as_lsa_input,
    is_chain,
)


class TorchTarget(Target):
    """The verifier in torch.

    Args:
        model: a causal LM of a family that the torch levels compute, in evaluation mode. It is taken over: its
            attention becomes ours, and in bfloat16 on a CPU its weights are packed, after which it runs but cannot be
            saved.
        context_length: the most positions a conversation may have; None: what the model was trained for.
        kv_bytes: of keys and values of all conversations; 0: a share of the device's free memory.
        fills: forwards are filled up to a power of two of rows, so that there are few shapes.
        record: records a forward of each shape as a graph; it needs `fills`.
        shares: processes that share the model, each with as many of its heads.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        context_length: int | None = None,
        *,
        kv_bytes: int = 0,
        attends: type[Attention] = SessionAttention,
        fills: bool = False,
        record: Record | None = None,
        shares: int = 1,
        make_pool: Callable[..., PagePool] = PagePool,
    ) -> None:
        config = model.config
        check_torch(config.to_dict(), type(model).__name__)
        register()
        model.set_attn_implementation(NAME)
        self.model = model
        self.dtype: torch.dtype = model.dtype
        self.device: torch.device = model.device
        model.requires_grad_(False)
        parts = cast(Any, model)  # transformers' classes share these names but no type that has them
        self._norm: nn.Module = parts.model.norm
        self._head: nn.Module = parts.lm_head
        plan = torch_plan(config.to_dict())
        self._logits_scale, self._logits_cap = plan.logits_scale, plan.logits_cap
        rotary = parts.model.rotary_emb
        layers = Layers(
            parts.model.embed_tokens,
            rotary,
            list(parts.model.layers),
            1.0 if plan.family.scales_embeddings else plan.embedding_scale,  # whose embeddings do so themselves
            tuple(config.layer_types) if "layer_type" in signature(rotary.forward).parameters else (),
        )
        heads, hidden = int(config.num_attention_heads), int(config.hidden_size)
        trained = int(config.max_position_embeddings)
        super().__init__(
            TargetShape(
                int(config.vocab_size),
                hidden,
                len(layers.decoder),
                int(config.num_key_value_heads),
                int(getattr(config, "head_dim", None) or hidden // heads),
                trained if context_length is None else min(context_length, trained),
            )
        )
        sizes = (self.layer_count, self.kv_heads // shares, self.head_dim)
        self.pool = make_pool(*sizes, kv_bytes or free_kv_bytes(self.device), self.dtype, self.device)
        self._attends = attends(self.pool, heads // shares, attention_shape(plan))
        self._forward = Forward(layers, self._attends, self.context_length, record)
        self._fills = fills
        self._one_forward = Lock()  # at a time: they share what attention is prepared for, and the graphs

    @property
    def details(self) -> str:
        where = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "CPU"
        return f"torch {torch.__version__} on {where}, {self._attends.name}"

    def new_cache(self) -> PagedCache:
        return PagedCache(self.pool)

    def kv_bytes(self) -> int:
        return self.pool.nbytes

    def lsa_inputs(self, spans: Sequence[tuple[KVCache, int, int]]) -> Rows:
        slots = [slot for cache, start, stop in spans for slot in _paged(cache).held_slots(start, stop)]
        return as_lsa_input(in_order(self.pool.read(slots)))

    def _run(self, requests: Sequence[Request], depths: Sequence[Sequence[int]]) -> list[TargetOutput]:
        parts = [_part(request, of_request) for request, of_request in zip(requests, depths, strict=True)]
        rows = sum(len(part.tokens) for part in parts)
        firsts = [0, *accumulate(len(part.tokens) for part in parts)]
        chosen = [first + row for first, request in zip(firsts, requests, strict=False) for row in request.logits_for]
        layers = sorted({layer for request in requests for layer in request.state_layers})
        run = Run(parts, bucket(rows) if self._fills else 0, self._filled(chosen), layers)
        logits, hidden, states = self.compute(run)
        outputs, row = [], 0
        for first, request in zip(firsts, requests, strict=False):
            count = len(request.logits_for)
            own = slice(first, first + len(request.tokens))
            outputs.append(
                TargetOutput(
                    logits[row : row + count],
                    hidden[row : row + count],
                    {layer: states[layer][own] for layer in request.state_layers},
                )
            )
            row += count
        return outputs

    def compute(self, run: Run) -> tuple[Rows, Rows, dict[int, Rows]]:
        """The layers over a forward's rows, and the head over those that were chosen.

        Returns:
            [chosen, vocab] logits, [chosen, hidden_size] after the final norm, [rows, hidden_size] entering each layer.
        """
        batch = lay_out(run.parts, run.rows)
        with self._one_forward, torch.inference_mode():  # the latter is 4 % faster than no_grad on one core
            last, entering = self._forward.run(batch, run.layers)
            normed = self._norm(last[torch.tensor(run.chosen, dtype=torch.long, device=self.device)])
            logits, hidden = as_array(self._scaled(self._head(normed))), as_array(normed)
            # The next forward overwrites those of a graph.
            return logits, hidden, {layer: as_array(state.clone()) for layer, state in entering.items()}

    def _scaled(self, logits: torch.Tensor) -> torch.Tensor:
        if self._logits_scale != 1:
            logits = logits * self._logits_scale
        return self._logits_cap * torch.tanh(logits / self._logits_cap) if self._logits_cap else logits

    def _filled(self, rows: list[int]) -> list[int]:
        """Rows for the head: as many as a bucket has, if forwards are filled."""
        return rows + [0] * (bucket(len(rows)) - len(rows)) if self._fills and rows else rows

    def memory_rows(self, drafter: Checkpoint) -> Callable[[Rows], Rows]:
        return self.over_arrays(drafter.torch_rows(self.dtype, self.device))

    def normed(self, state: Rows) -> Rows:
        return self.over_arrays(self._norm)(state)

    def over_arrays(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Rows], Rows]:
        return over_arrays(function, self.dtype, self.device)


def attention_shape(plan: Plan) -> AttentionShape:
    """What a family's attention does besides a causal softmax."""
    return AttentionShape(tuple(layer.window for layer in plan.layers), plan.shape.score_cap)


def free_kv_bytes(device: torch.device) -> int:
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_memory_bytes()
    return int(KV_SHARE * free)


def _paged(cache: KVCache) -> PagedCache:
    if not isinstance(cache, PagedCache):
        raise InternalError("A forward of torch was given another backend's cache.")
    return cache


def _part(request: Request, depths: Sequence[int]) -> BatchPart:
    cache = _paged(request.cache)
    parents = None if is_chain(request.parents) else request.parents
    return BatchPart(request.tokens, depths, cache.length, cache.pages, parents)
