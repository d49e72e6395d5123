"""What a run begins with: the drafter's configuration, its vocabulary, and its first tensors.

Tensors begin as the target's own layers instead of random numbers: self-attention as its first layer, cross-attention
as the one before the reused layers, and what reads of the target by regression to the states that enter these layers.
A choice of sizes that does not fit the target's is refused, never truncated.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from moa_shared.drafter.checkpoint import fresh_tensors
from moa_shared.drafter.kinds import KINDS, DrafterConfig
from moa_shared.drafter.kinds.config import EACH
from moa_shared.drafter.kinds.layout import OWN_HEAD, target_sizes
from moa_shared.errors import CheckpointError, ConfigError
from moa_shared.models import ModelFiles, load_config
from moa_shared.models.network.families import EARLIEST, FAMILIES
from moa_shared.models.network.plan import layer_kinds, with_defaults
from moa_shared.models.storage.gguf_keys import SLIDING

from moa_training.data.shards import TokenRow
from moa_training.objective.moa import MemoryObjective
from moa_training.objective.objective import Objective, PositionsObjective
from moa_training.objective.states import BlocksObjective, StepsObjective
from moa_training.settings import DrafterSettings, FitSettings
from moa_training.teacher.teacher import Teacher

OBJECTIVES: dict[str, type[Objective]] = {
    "memory": MemoryObjective,
    "positions": PositionsObjective,
    "steps": StepsObjective,
    "blocks": BlocksObjective,
}
_FAMILIES = (*EARLIEST, "mistral")  # of Llama's form, which is what training computes behind the text

_HEAD_NORMS = ("qwen3",)  # families whose queries and keys are normed head by head: so are those of their drafters


def drafter_config(settings: FitSettings, files: ModelFiles) -> DrafterConfig:
    """Raises ConfigError for sizes that the target does not allow, or a target whose form training does not compute."""
    family = str(files.config["model_type"])
    kinds = layer_kinds(with_defaults(files.config, FAMILIES[family]), FAMILIES[family])
    windows = " with sliding windows" if SLIDING in kinds else ""
    if family not in _FAMILIES or windows:
        raise ConfigError(
            f"Drafters are not trained for {files.target_id}, a {family}{windows}: "
            f"only for {', '.join(_FAMILIES)} without sliding windows.",
            hint="Choose another target.",
        )
    target: Any = load_config(files)
    wanted = settings.drafter
    kv_heads = target.num_key_value_heads
    lsa_heads = wanted.lsa_heads or 2 * kv_heads
    kind = KINDS[wanted.kind]
    mask_token = target.vocab_size - 1 if wanted.mask_token is None else wanted.mask_token
    has_blocks = "block_size" in kind.takes
    try:
        return DrafterConfig(
            **target_sizes(files.config),
            sa_kv_heads=wanted.sa_kv_heads or kv_heads,
            sa_mlp=wanted.sa_mlp or target.intermediate_size,
            ca_kv_heads=wanted.ca_kv_heads or kv_heads,
            ca_mlp=wanted.ca_mlp or target.intermediate_size,
            lsa_heads=lsa_heads,
            lsa_kv_heads=wanted.lsa_kv_heads or (kv_heads if lsa_heads % kv_heads == 0 else lsa_heads),
            lsa_mlp=wanted.lsa_mlp,
            rms_norm_eps=target.rms_norm_eps,
            rope_parameters=dict(target.rope_parameters),
            reused_layers=wanted.reused_layers,
            draft_vocab=min(wanted.draft_vocab, target.vocab_size),
            output_norm=wanted.output_norm and wanted.reused_layers == 0 and not kind.reads_states,
            kind=wanted.kind,
            own_layers=wanted.own_layers if kind.has_many_layers else 1,
            lsa=wanted.lsa and wanted.ca,
            ca=wanted.ca,
            max_block=settings.blocks.longest,
            target_fingerprint=files.fingerprint,
            state_entries=_state_entries(wanted, target.num_hidden_layers),
            head_norms=kind.reads_states and family in _HEAD_NORMS,
            feature_norm=EACH if wanted.eagle31 else "",
            normed_feedback=wanted.eagle31,
            block_size=wanted.block_size if has_blocks else 0,
            mask_token=mask_token if has_blocks else 0,
        )
    except CheckpointError as error:
        raise ConfigError(error.message, hint="Correct the [drafter] table of the configuration.") from None


def _state_entries(wanted: DrafterSettings, layers: int) -> tuple[int, ...]:
    """Those of the settings, or the authors' for a target of so many layers; none where they read none."""
    if wanted.state_entries is not None:
        return wanted.state_entries
    entries = KINDS[wanted.kind].usual_entries(layers)
    if list(entries) != sorted(set(entries)):
        raise ConfigError(
            f"A target of {layers} layers has too few for the states that {wanted.kind} reads.",
            hint="Choose them with drafter.state_entries.",
        )
    return entries


def choose_draft_ids(rows: Sequence[TokenRow], size: int, vocab_size: int) -> tuple[torch.Tensor, float]:
    """The `size` most frequent tokens of answers, then of whole conversations, then the lowest ids.

    Returns ids [size] int32, sorted, and the share of answer tokens that they cover.
    """

    def count(texts: Iterable[Sequence[int]]) -> torch.Tensor:
        ids = np.fromiter(chain.from_iterable(texts), np.int64)
        return torch.from_numpy(np.bincount(ids, minlength=vocab_size).astype(np.float64))

    answers = count(row.ids[start:stop] for row in rows for start, stop in row.answers)
    everything = count(row.ids for row in rows)
    tie_break = torch.arange(vocab_size, dtype=torch.float64) / vocab_size
    score = answers * 1e9 + everything * 1e3 - tie_break
    ids = score.topk(min(size, vocab_size)).indices.sort().values
    covered = float(answers[ids].sum() / answers.sum().clamp(min=1))
    return ids.to(torch.int32), covered


def starting_tensors(
    config: DrafterConfig, teacher: Teacher, draft_ids: torch.Tensor | None, seed: int, *, warm: bool
) -> dict[str, torch.Tensor]:
    """Tensors by the checkpoint's names, float32."""
    ids = None if draft_ids is None else draft_ids.numpy()
    fresh = fresh_tensors(config, seed, ids)
    tensors = {name: torch.from_numpy(value) for name, value in fresh.items()}
    if not warm:
        return tensors
    layers, first_layers = teacher.model.model.layers, config.traits.begins_as(config)
    for name, layer in first_layers.items():
        state = layers[layer].state_dict()
        beside = f"{name}.hidden_norm.weight" in tensors
        for part in [key for key in tensors if key.startswith(f"{name}.")]:
            value = _first_value(part.removeprefix(f"{name}."), state, layers[0].state_dict() if beside else None)
            if value.shape != tensors[part].shape:
                raise ConfigError(
                    f"warm_start needs {name} of the target's own sizes: {part} is {tuple(tensors[part].shape)}, "
                    f"the target's {tuple(value.shape)}.",
                    hint="Leave the kv_heads and mlp settings out, or set warm_start = false.",
                )
            tensors[part] = value.clone()
    norms = dict.fromkeys(("output_norm.weight", "norm.weight"), teacher.final_norm.state_dict()["weight"])
    if "hidden_norm.weight" in tensors:  # what its layers read of the text is in place of their normed inputs
        norms["hidden_norm.weight"] = layers[first_layers["layers.0"]].input_layernorm.weight
    tensors |= {name: value.detach().float().cpu().clone() for name, value in norms.items() if name in tensors}
    if OWN_HEAD in tensors:
        head = teacher.head if draft_ids is None else teacher.head[draft_ids.to(teacher.head.device).long()]
        tensors[OWN_HEAD] = head.float().cpu().clone()
    return tensors


def _first_value(
    part: str, state: Mapping[str, torch.Tensor], first: Mapping[str, torch.Tensor] | None
) -> torch.Tensor:
    """What one tensor of a layer begins as, by the state of the target's; with that of its first layer where the
    drafter's reads an embedding too: what projects the state begins as the target's, the other part at zero.
    """
    if first is None:
        return state[part].float().cpu()
    if part == "input_layernorm.weight":  # of embeddings
        state = first
    value = state["input_layernorm.weight" if part == "hidden_norm.weight" else part].float().cpu()
    inputs = tuple(f"self_attn.{name}_proj.weight" for name in "qkv")
    return torch.cat((torch.zeros_like(value), value), dim=1) if part in inputs else value
