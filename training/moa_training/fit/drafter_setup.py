"""From settings and a target to a drafter's configuration."""

from __future__ import annotations

from typing import Any

from moa_shared.drafter import DrafterConfig
from moa_shared.errors import CheckpointError, ConfigError
from moa_shared.models import ModelFiles, load_config
from moa_shared.models.network.description import EARLIEST, FAMILIES
from moa_shared.models.network.layer_sizes import SLIDING, layer_kinds, with_defaults

from moa_training.settings import FitSettings

_FAMILIES = (*EARLIEST, "mistral")  # of Llama's form, which is what training computes behind the text


def drafter_config(settings: FitSettings, files: ModelFiles) -> DrafterConfig:
    """Raises ConfigError for sizes that the target does not allow, or a target whose form training does not compute."""
    family = str(files.config["model_type"])
    description = FAMILIES[family]
    kinds = layer_kinds(with_defaults(files.config, description), description)
    windows = " with sliding windows" if SLIDING in kinds else ""
    if family not in _FAMILIES or windows:
        raise ConfigError(
            f"Drafters are not trained for {files.target_id}, a {family}{windows}: "
            f"only for {', '.join(_FAMILIES)} without sliding windows.",
            hint="Choose another target.",
        )
    target: Any = load_config(files)
    wanted = settings.drafter
    heads, kv_heads = target.num_attention_heads, target.num_key_value_heads
    lsa_heads = wanted.lsa_heads or 2 * kv_heads
    try:
        return DrafterConfig(
            vocab_size=target.vocab_size,
            hidden_size=target.hidden_size,
            target_layers=target.num_hidden_layers,
            target_heads=heads,
            target_kv_heads=kv_heads,
            target_head_dim=getattr(target, "head_dim", None) or target.hidden_size // heads,
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
            output_norm=wanted.output_norm and wanted.reused_layers == 0,
            unscaled_memory_rope=wanted.unscaled_memory_rope,
            kind=wanted.kind,
            own_layers=wanted.own_layers if wanted.kind == "independent" else 1,
            lsa=wanted.lsa,
            max_block=settings.blocks.longest,
            target_fingerprint=files.fingerprint,
        )
    except CheckpointError as error:
        raise ConfigError(error.message, hint="Correct the [drafter] table of the configuration.") from None
