"""Where training starts from: the target's own layers instead of random numbers.

Self-attention from the target's first layer, cross-attention from the one before the reused layers, the output norm
from the final norm, and `Ekv2E` by ridge regression from the untrained layer self-attention to the state that the
cross-attention's layer takes. A choice of sizes that does not fit the target's is refused, never truncated.
"""

from __future__ import annotations

import torch
from moa_shared.drafter import DrafterConfig, fresh_tensors
from moa_shared.drafter.checkpoint.config import MOA
from moa_shared.drafter.checkpoint.shapes import layer_names
from moa_shared.errors import ConfigError

from moa_training.objective.layer_memory import FastDrafter
from moa_training.objective.network import Activations
from moa_training.teacher.teacher import Teacher

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
    for name, layer in _sources(config).items():
        state = teacher.model.model.layers[layer].state_dict()
        for part in [key for key in tensors if key.startswith(f"{name}.")]:
            value = state[part.removeprefix(f"{name}.")].float().cpu()
            if value.shape != tensors[part].shape:
                raise ConfigError(
                    f"warm_start needs {name} of the target's own sizes: {part} is {tuple(tensors[part].shape)}, "
                    f"the target's {tuple(value.shape)}.",
                    hint="Leave the kv_heads and mlp settings out, or set warm_start = false.",
                )
            tensors[part] = value.clone()
    if config.output_norm:
        tensors["output_norm.weight"] = teacher.final_norm.state_dict()["weight"].float().cpu().clone()
    return tensors


def _sources(config: DrafterConfig) -> dict[str, int]:
    """The target's layer that each of the drafter's begins as: of baselines the first and the last ones."""
    if config.kind == MOA:
        return {"self_attention": 0, "cross_attention": config.target_layers - 1 - config.reused_layers}
    names, last = layer_names(config), config.target_layers - 1
    lower = len(names) // 2
    return {name: at if at < lower else last - (len(names) - 1 - at) for at, name in enumerate(names)}


@torch.no_grad()
def fit_projection(projection: torch.nn.Linear, target: Activations, state: torch.Tensor) -> None:
    """Sets EAGLE-2's projection so that its rows come near `state`, the input of the layer that its own begins as.

    Args:
        target: of one conversation a row, or packed; the first token of each is left out.
        state: [rows, length, hidden].
    """
    inputs = torch.cat((target.embeddings, target.last_hidden.roll(1, dims=1)), dim=-1)
    kept = target.positions > 0
    rows, truth = inputs[kept].double(), state[kept].double()
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
