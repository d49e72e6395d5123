"""Which layers of a model are mixtures of experts, and how a row's are chosen, from its config.json. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moa_kernels.transformer.experts import MOST_EXPERTS

from moa_shared.models.network.description import Description, Mixture

_COUNTS = ("num_experts", "num_local_experts")


@dataclass(frozen=True, slots=True)
class MixturePlan:
    """The experts of one layer.

    Args:
        count: how many there are.
        inner: the width of each.
        chosen: how many a row has.
        weighs_all: weights are a softmax over all scores, else over those of the chosen.
        beside: an MLP stands beside them.
    """

    count: int
    inner: int
    chosen: int
    weighs_all: bool
    beside: bool = False


def mixture_of(config: Mapping[str, Any], description: Description, layer: int) -> MixturePlan | None:
    """The plan of a layer's experts; None: it has an MLP like dense models.

    Args:
        config: with the family's defaults.
        layer: counted from 0.
    """
    mixture = description.mixture
    every = int(config.get("decoder_sparse_step") or 1)
    if (
        mixture is None
        or not is_on(config, mixture)
        or layer in (config.get("mlp_only_layers") or ())
        or (layer + 1) % every
    ):
        return None
    weighs_all = not (mixture.weighs_chosen or config.get("norm_topk_prob"))
    count, chosen = int(config[_count_key(config)]), int(config[mixture.chosen])
    return MixturePlan(count, int(config[mixture.inner]), chosen, weighs_all, mixture.beside)


def is_on(config: Mapping[str, Any], mixture: Mixture) -> bool:
    """Whether a model of a family with experts has any."""
    return not mixture.switch or bool(config.get(mixture.switch))


def mistake_in(config: Mapping[str, Any], description: Description, most_size: int) -> str | None:
    """What makes no sense of the configuration's experts, or is not computed; None: nothing.

    Args:
        config: as its file has it.
    """
    mixture = description.mixture
    if mixture is None or not is_on(config, mixture):
        return None
    config = {**description.defaults, **config}
    count_key = _count_key(config)
    most = MOST_EXPERTS
    for key in (count_key, mixture.chosen, mixture.inner, "decoder_sparse_step"):
        value = config.get(key, 1 if key == "decoder_sparse_step" else None)
        if type(value) is not int or not 0 < value <= most:
            return f"{key} = {value!r}, expected a whole number from 1 to {most}"
        most = value if key == count_key else most_size
    dense = config.get("mlp_only_layers")
    if dense is not None and (not isinstance(dense, list) or any(type(layer) is not int for layer in dense)):
        return f"mlp_only_layers = {dense!r}"
    for key in ("clip_qkv", "swiglu_alpha", "swiglu_limit"):
        value = config.get(key)
        if value is None:
            continue
        if type(value) not in (int, float) or not 0 < value < 1e6:
            return f"{key} = {value!r}"
    return None


def _count_key(config: Mapping[str, Any]) -> str:
    return next((key for key in _COUNTS if config.get(key) is not None), _COUNTS[0])
