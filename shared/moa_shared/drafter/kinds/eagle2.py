"""EAGLE-2 (arXiv 2406.16858): one layer over the target's last hidden state, as a baseline.

EAGLE-1 and EAGLE-2 are the same ten tensors: the second is another way of drafting with the first one's weights.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from moa_shared.drafter.kinds.baseline import FC, Baseline
from moa_shared.drafter.kinds.config import Conversion, DrafterConfig, Layout, Published, Shapes
from moa_shared.drafter.kinds.layout import check_whole, rope_of, target_sizes, unused_sizes
from moa_shared.models.network.layers import stack_shape

_THETA, _EPS = 10_000.0, 1e-6  # of EAGLE's code, where the configuration names none
_LAYER = "spec_model"
_EAGLE, _OF_AUTHORS = "EAGLE", "EAGLE (of the authors of Mixture of Attentions)"


def _ours(name: str) -> str:
    if name.startswith("fc."):
        return f"{FC}.{name.removeprefix('fc.')}"
    return f"{_LAYER}.{name.removeprefix('layers.0.')}" if name.startswith("layers.0.") else name


def _theirs(name: str, shapes: Shapes) -> str:
    return name.replace(f"{FC}.", "fc.").replace(f"{_LAYER}.", "layers.0.")


def _convert(layout: str, of: Published) -> Conversion:
    """Sizes that the configuration does not name are taken from the tensors; so are all that the authors of Mixture of
    Attentions publish, who name the tensors as we do.
    """
    is_eagles = layout == _EAGLE
    kept = check_whole(of, layout, "fc.weight" if is_eagles else f"{FC}.weight")
    names = {name: _ours(name) if is_eagles else name for name in kept}
    ours = {plain: of.shapes[name] for name, plain in names.items()}
    sizes = of.config if is_eagles else {}
    keys, up = ours[f"{_LAYER}.self_attn.k_proj.weight"], ours[f"{_LAYER}.mlp.up_proj.weight"]
    config = DrafterConfig(
        **target_sizes(of.target),
        sa_kv_heads=sizes.get("num_key_value_heads") or keys[0] // stack_shape(of.target).head_dim,
        sa_mlp=sizes.get("intermediate_size") or up[0],
        **unused_sizes(of.target),
        rms_norm_eps=float(of.config.get("rms_norm_eps", _EPS)),
        rope_parameters=rope_of(of.config, _THETA),
        kind=EAGLE2.name,
        input_norm=f"{_LAYER}.input_layernorm.weight" in ours,
        fc_bias=f"{FC}.bias" in ours,
        qkv_bias=f"{_LAYER}.self_attn.q_proj.bias" in ours,
    )
    return config, names


class _Eagle2(Baseline):
    name = "eagle2"
    label = "EAGLE-2"
    about = "An EAGLE-2 drafter (arXiv 2406.16858)"
    variants: ClassVar = {"eagle2": "EAGLE-2"}
    layouts = (
        Layout(_OF_AUTHORS, lambda names: f"{FC}.weight" in names, partial(_convert, _OF_AUTHORS)),
        Layout(_EAGLE, lambda names: "fc.weight" in names, partial(_convert, _EAGLE), _theirs),
    )
    takes = frozenset({"input_norm", "fc_bias", "qkv_bias"})

    def layers(self, config: DrafterConfig) -> list[str]:
        return [_LAYER]

    def shapes(self, config: DrafterConfig) -> Shapes:
        hidden = config.hidden_size
        shapes = super().shapes(config) | {f"{FC}.weight": (hidden, 2 * hidden)}
        return shapes | {f"{FC}.bias": (hidden,)} if config.fc_bias else shapes

    def reads_last_hidden(self, config: DrafterConfig) -> bool:
        return True


EAGLE2 = _Eagle2()
