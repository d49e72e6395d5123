"""Where training starts from: the target's own layers instead of random numbers.

Self-attention from the target's first layer, cross-attention from the one before the reused layers, the output norm
from the final norm, and `Ekv2E` by ridge regression from the untrained layer self-attention to the state that the
cross-attention's layer takes. Layers of kinds that read states come from the last ones, and what they read by
regression to the states that enter these. A choice of sizes that does not fit the target's is refused, never truncated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from moa_shared.drafter import DrafterConfig, fresh_tensors
from moa_shared.drafter.kinds.layout import OWN_HEAD
from moa_shared.errors import ConfigError
from torch import nn

from moa_training.objective.baselines import TrainingBaseline
from moa_training.objective.blocks_at_once import TrainingBlocks
from moa_training.objective.eagle3 import TrainingEagle3
from moa_training.objective.layer_memory import FastDrafter
from moa_training.objective.network import Activations
from moa_training.teacher.teacher import Teacher

# From a layer's number and how many tokens: activations of the target, and the states that enter the layer.
Sample = Callable[[int, int], tuple[Activations, torch.Tensor]]
_RIDGE = 1e-2  # of the mean square of the inputs; the regression's rows outnumber its columns by 5 or more


def starting_tensors(
    config: DrafterConfig,
    teacher: Teacher,
    draft_ids: torch.Tensor | None,
    seed: int,
    *,
    warm: bool,
    norms_near_zero: bool = False,
) -> dict[str, torch.Tensor]:
    """Tensors by the checkpoint's names, float32.

    Raises:
        ConfigError: the sizes of self- or cross-attention are not those of the target's layers.
    """
    ids = None if draft_ids is None else draft_ids.numpy()
    fresh = fresh_tensors(config, seed, ids, norms_near_zero=norms_near_zero)
    tensors = {name: torch.from_numpy(value) for name, value in fresh.items()}
    if not warm:
        return tensors
    for name, layer in config.traits.begins_as(config).items():
        state = teacher.model.model.layers[layer].state_dict()
        for part in [key for key in tensors if key.startswith(f"{name}.")]:
            value = _source(
                part.removeprefix(f"{name}."), state, teacher, beside=f"{name}.hidden_norm.weight" in tensors
            )
            if value.shape != tensors[part].shape:
                raise ConfigError(
                    f"warm_start needs {name} of the target's own sizes: {part} is {tuple(tensors[part].shape)}, "
                    f"the target's {tuple(value.shape)}.",
                    hint="Leave the kv_heads and mlp settings out, or set warm_start = false.",
                )
            tensors[part] = value.clone()
    final_norm = teacher.final_norm.state_dict()["weight"].float().cpu()
    for name in ("output_norm.weight", "norm.weight"):
        if name in tensors:
            tensors[name] = final_norm.clone()
    if OWN_HEAD in tensors:
        head = teacher.head if draft_ids is None else teacher.head[draft_ids.to(teacher.head.device).long()]
        tensors[OWN_HEAD] = head.float().cpu().clone()
    if "hidden_norm.weight" in tensors:  # what its layers read of the text is in place of their normed inputs
        first = teacher.model.model.layers[config.traits.begins_as(config)["layers.0"]]
        tensors["hidden_norm.weight"] = first.input_layernorm.weight.float().cpu().clone()
    return tensors


def _source(part: str, state: Mapping[str, torch.Tensor], teacher: Teacher, *, beside: bool) -> torch.Tensor:
    """What one tensor of a layer begins as.

    Args:
        state: of the target's layer.
        beside: the layer reads an embedding next to a state (EAGLE-3): the part of its projections that reads the state
            begins as the target's, and the other at zero.
    """
    if not beside:
        return state[part].float().cpu()
    if part == "input_layernorm.weight":  # of embeddings, as in the target's first layer
        state = teacher.model.model.layers[0].state_dict()
    value = state["input_layernorm.weight" if part == "hidden_norm.weight" else part].float().cpu()
    inputs = tuple(f"self_attn.{name}_proj.weight" for name in "qkv")
    return torch.cat((torch.zeros_like(value), value), dim=1) if part in inputs else value


@torch.no_grad()
def fit_inputs(drafter: nn.Module, config: DrafterConfig, sample: Sample) -> None:
    """Starts what the drafter reads of the target near the state that its layer was made for."""
    last = config.target_layers - 1
    if isinstance(drafter, FastDrafter) and config.lsa:
        target, state = sample(last - config.reused_layers, 5 * config.kv_width)
        drafter.eval()
        fit_memory(drafter, target.kv.float(), state.float())
    elif isinstance(drafter, FastDrafter) and config.state_entries:
        target, state = sample(last - config.reused_layers, 5 * drafter.fc.in_features)
        fit_projection(drafter.fc, target.entry_states.flatten(2).flatten(0, 1), state.flatten(0, 1))
    elif isinstance(drafter, TrainingBaseline) and config.reads_last_hidden:
        target, state = sample(last, 10 * config.hidden_size)
        rows, kept = torch.cat((target.embeddings, target.last_hidden.roll(1, dims=1)), -1), target.positions > 0
        fit_projection(drafter.spec_model_fc, rows[kept], state[kept])
    elif isinstance(drafter, TrainingEagle3):  # a row's states are those of the token before
        target, state = sample(last, 5 * drafter.fc.in_features)
        rows, kept = drafter.joined(target.entry_states.float()).roll(1, dims=1), target.positions > 0
        fit_projection(drafter.fc, rows[kept], state[kept])
    elif isinstance(drafter, TrainingBlocks):
        target, state = sample(last + 1 - config.own_layers, 5 * drafter.fc.in_features)
        fit_projection(drafter.fc, target.entry_states.flatten(2).flatten(0, 1), state.flatten(0, 1))


@torch.no_grad()
def fit_projection(projection: torch.nn.Linear, rows: torch.Tensor, truth: torch.Tensor) -> None:
    """Sets a projection so that it comes near `truth`, the input of the layer that the drafter's own begins as.

    Args:
        rows: [rows, inputs]; truth: [rows, hidden].
    """
    rows, truth = rows.double(), truth.double()
    gram = rows.t() @ rows
    ridge = _RIDGE * gram.diagonal().mean() * torch.eye(len(gram), device=gram.device, dtype=torch.float64)
    projection.weight.copy_(torch.linalg.solve(gram + ridge, rows.t() @ truth).t())


@torch.no_grad()
def fit_memory(drafter: FastDrafter, kv: torch.Tensor, state: torch.Tensor) -> None:
    """Sets `Ekv2E` so that fresh memory rows come near `state`, the input of the cross-attention's own layer.

    Args:
        kv: [rows, length, layers, KV width]; state: [rows, length, hidden].
    """
    weight, bias = drafter.Ekv2E.weight, drafter.Ekv2E.bias
    width = weight.shape[1]
    identity = torch.nn.Linear(width, width, bias=False).to(weight.device, weight.dtype)
    identity.weight.copy_(torch.eye(width))
    kept, drafter.Ekv2E = drafter.Ekv2E, identity
    inputs = drafter.memory(kv).flatten(0, 1).double()
    drafter.Ekv2E = kept
    truth = state.flatten(0, 1).double()
    mean, level = inputs.mean(0), truth.mean(0)
    centred = inputs - mean
    ridge = _RIDGE * centred.square().mean() * len(centred) * torch.eye(width, device=kv.device, dtype=torch.float64)
    solution = torch.linalg.solve(centred.t() @ centred + ridge, centred.t() @ (truth - level))  # [width, hidden]
    weight.copy_(solution.t())
    bias.copy_(level - mean @ solution)
