"""From settings and a target to a drafter's configuration."""

from __future__ import annotations

from typing import Any

from moa_shared.drafter import KINDS, DrafterConfig
from moa_shared.drafter.kinds.config import EACH
from moa_shared.errors import CheckpointError, ConfigError
from moa_shared.models import ModelFiles, load_config
from moa_shared.models.families import EARLIEST, FAMILIES
from moa_shared.models.gguf.keys import SLIDING
from moa_shared.models.network.layer_sizes import layer_kinds, with_defaults

from moa_training.settings import DrafterSettings, FitSettings

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
    heads, kv_heads = target.num_attention_heads, target.num_key_value_heads
    lsa_heads = wanted.lsa_heads or 2 * kv_heads
    kind = KINDS[wanted.kind]
    mask_token = target.vocab_size - 1 if wanted.mask_token is None else wanted.mask_token
    has_blocks = "block_size" in kind.takes
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
            output_norm=wanted.output_norm and wanted.reused_layers == 0 and not kind.reads_states,
            unscaled_memory_rope=wanted.unscaled_memory_rope,
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
    """Those of the settings, or the authors' for a target of so many layers; none where they read none.

    Raises:
        ConfigError: it has too few layers for the authors'.
    """
    if wanted.state_entries is not None:
        return wanted.state_entries
    entries = KINDS[wanted.kind].usual_entries(layers)
    if list(entries) != sorted(set(entries)):
        raise ConfigError(
            f"A target of {layers} layers has too few for the states that {wanted.kind} reads.",
            hint="Choose them with drafter.state_entries.",
        )
    return entries
