"""`Target`: a transformers causal LM that verifies chains and trees in one forward over a `KVCache`.

It runs transformers' own decoder layers in its own loop, which gives what a verification needs and `model.forward` does
not: a mask of ancestors, positions by depth, the state that enters a chosen layer, and the head on chosen rows only.
State: the model, not changed after the start. Invariant: for a path of a tree the result is that of the path alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from moa_shared.errors import ContextLengthError, InternalError, TokenRangeError, TreeError
from moa_shared.models.family import check_family
from moa_shared.models.packed_linear import pack_linears
from torch import nn
from transformers import PreTrainedModel

from moa_server.target import attention
from moa_server.target.arrays import Rows, as_array, over_arrays
from moa_server.target.kv_cache import KVCache
from moa_server.target.visibility import attention_mask, tail_depths

# 1,500 tokens on one core: 1.67 s in chunks of 128, 1.29 s of 256, 1.21 s of 512, 1.16 s of 1024. Other sessions wait
# for a chunk, so the smallest that costs little.
PREFILL_CHUNK_TOKENS = 256


@dataclass(frozen=True, slots=True)
class TargetOutput:
    """What one forward gives, in float32 whatever the model computes in.

    Attributes:
        logits: [rows asked, vocab].
        hidden: [rows asked, hidden_size] after the final norm.
        state: [tokens, hidden_size] entering the layer asked for, or None.
    """

    logits: Rows
    hidden: Rows
    state: Rows | None


class Target:
    """The verifier.

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
        self.vocab_size = int(config.vocab_size)
        self.hidden_size = int(config.hidden_size)
        self.layer_count = len(self._layers)
        self.kv_heads = int(config.num_key_value_heads)
        self.head_dim = int(getattr(config, "head_dim", None) or self.hidden_size // config.num_attention_heads)
        trained = int(config.max_position_embeddings)
        self.context_length = trained if context_length is None else min(context_length, trained)

    def new_cache(self) -> KVCache:
        """An empty cache for one conversation."""
        return KVCache(self.layer_count, self.kv_heads, self.head_dim, dtype=self.dtype, device=self.device)

    def forward(
        self,
        cache: KVCache,
        tokens: Sequence[int],
        parents: Sequence[int] | None = None,
        logits_for: slice | Sequence[int] = slice(None),
        want_state_layer: int | None = None,
    ) -> TargetOutput:
        """Run `tokens` behind what the cache holds; their keys and values are the cache's new tail.

        After a tree, call `cache.keep` with the accepted path before the next forward. Nothing is changed on an error.

        Args:
            parents: of each token within `tokens`, -1 for the last token of the cache; None for a chain.
            logits_for: the rows (of `tokens`) that logits and hidden state are wanted of.
            want_state_layer: also give the state that enters this decoder layer; as many as there are layers: what
                leaves the last one.

        Raises:
            TokenRangeError: no tokens, or one outside the vocabulary.
            TreeError: as many parents as tokens are needed, each before its child.
            ContextLengthError: positions beyond the context.
        """
        depths = self._check(cache.length, tokens, parents)
        if want_state_layer is not None and not 0 <= want_state_layer <= self.layer_count:
            raise InternalError(f"Layer {want_state_layer} was asked of a target with {self.layer_count}.")
        if parents is not None and all(parent == node - 1 for node, parent in enumerate(parents)):
            parents = None
        cache.begin(len(tokens))
        with torch.inference_mode():  # 4 % faster than no_grad on one core
            state, hidden = self._run_layers(cache, tokens, parents, depths, want_state_layer)
            normed = self._norm(hidden[rows_index(logits_for, len(tokens), self.device)])
            logits = self._head(normed)
        cache.end(depths)
        return TargetOutput(as_array(logits), as_array(normed), None if state is None else as_array(state))

    def normed(self, state: Rows) -> Rows:
        """The final norm of what leaves the last layer, [rows, hidden_size]: what the head takes."""
        return self.over_arrays(self._norm)(state)

    def over_arrays(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Rows], Rows]:
        """A function over tensors such as the target's own (its dtype, its device) as one over float32 arrays."""
        return over_arrays(function, self.dtype, self.device)

    def prefill(
        self,
        cache: KVCache,
        tokens: Sequence[int],
        want_state_layer: int | None = None,
        chunk_tokens: int = PREFILL_CHUNK_TOKENS,
    ) -> TargetOutput:
        """Run a long chain in chunks; logits and hidden state of the last token only, state of all.

        Raises:
            As `forward`; all tokens are checked before the first chunk runs.
        """
        self._check(cache.length, tokens, None)
        cache.reserve(cache.length + len(tokens))
        states = []
        output = None
        for start in range(0, len(tokens), chunk_tokens):
            chunk = tokens[start : start + chunk_tokens]
            last = start + len(chunk) == len(tokens)
            rows = slice(len(chunk) - 1, None) if last else slice(0, 0)
            output = self.forward(cache, chunk, None, rows, want_state_layer)
            states.append(output.state)
        if output is None:
            raise InternalError("A prefill ran no chunk.")
        state = np.concatenate([part for part in states if part is not None]) if want_state_layer is not None else None
        return TargetOutput(output.logits, output.hidden, state)

    def _run_layers(
        self,
        cache: KVCache,
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
        mask = attention_mask(prefix, parents, len(tokens), self.dtype, self.device)
        state = None
        for index, layer in enumerate(self._layers):
            if index == want_state_layer:
                state = hidden[0]
            hidden = layer(hidden, attention_mask=mask, position_embeddings=rotary, past_key_values=cache)
        return hidden[0] if want_state_layer == self.layer_count else state, hidden[0]

    def _check(self, prefix: int, tokens: Sequence[int], parents: Sequence[int] | None) -> Sequence[int]:
        """Validate what came from outside; the depth of each token."""
        if not tokens:
            raise TokenRangeError("A forward was asked for no tokens.", hint="Send at least one token.")
        if min(tokens) < 0 or max(tokens) >= self.vocab_size:
            wrong = next(token for token in tokens if not 0 <= token < self.vocab_size)
            raise TokenRangeError(f"The token id {wrong} is outside the vocabulary of {self.vocab_size}.")
        if parents is not None and len(parents) != len(tokens):
            raise TreeError(f"{len(tokens)} tokens came with {len(parents)} parents.", hint="Send one parent a token.")
        depths = range(len(tokens)) if parents is None else tail_depths(parents)
        needed = prefix + max(depths) + 1
        if needed > self.context_length:
            raise ContextLengthError(f"{needed} tokens do not fit into the context of {self.context_length}.")
        return depths


def rows_index(rows: slice | Sequence[int], count: int, device: torch.device) -> slice | torch.Tensor:
    """`rows` as an index of a tensor.

    Raises:
        InternalError: a row that is not there.
    """
    if isinstance(rows, slice):
        return rows
    if any(not 0 <= row < count for row in rows):
        raise InternalError(f"Rows {list(rows)} were asked of a forward of {count} tokens.")
    return torch.tensor(rows, dtype=torch.long, device=device)
