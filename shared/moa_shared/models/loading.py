"""Reading a resolved target into torch: the whole model, some tensors of it, or its tokenizer.

Imports torch and transformers; `moa_shared.models` imports this module only when one of its functions is called.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from moa_shared.errors import ModelSourceError
from moa_shared.models.files import ModelFiles

EMBEDDINGS = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"
SCALE = ".scale"  # behind a name: the scales of the rows of a tensor in int8 (see parts.py)
_CORRUPT = "The file is truncated or corrupt: delete it and fetch or convert the model again."


def load_config(files: ModelFiles) -> PreTrainedConfig:
    """The configuration as transformers' class."""
    return cast(PreTrainedConfig, AutoConfig.from_pretrained(files.folder, local_files_only=True))


def load_tokenizer(files: ModelFiles) -> PreTrainedTokenizerBase:
    """The tokenizer, with its chat template.

    Raises:
        ModelSourceError: the tokenizer's files cannot be read.
    """
    try:
        return cast(PreTrainedTokenizerBase, _read_tokenizer(files.tokenizer))
    except Exception as error:  # tokenizers raises a bare Exception on a damaged tokenizer.json
        raise ModelSourceError(
            f"The tokenizer of {files.target_id} in {files.tokenizer} cannot be read ({error}).", hint=_CORRUPT
        ) from error


def _read_tokenizer(folder: Path) -> object:
    """Never with code that a folder brings along, and without asking whether it may."""
    return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def load_target_model(
    files: ModelFiles, dtype: torch.dtype = torch.float32, layers: Sequence[int] | None = None
) -> PreTrainedModel:
    """The target, in evaluation mode and without gradients.

    Args:
        dtype: of weights and activations.
        layers: keep only these decoder layers, in this order (a device that runs the last N); None: all.

    Raises:
        ModelSourceError: the weights are corrupt, or do not fit the configuration.
    """
    config = load_config(files)
    kept = range(config.num_hidden_layers) if layers is None else layers
    state = {place: name for name, place in _places(files, kept).items()}
    tensors = load_part(files, state.values(), dtype)
    config.num_hidden_layers = len(kept)
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[layer] for layer in kept]
    model_class = cast(type[PreTrainedModel], MODEL_FOR_CAUSAL_LM_MAPPING[type(config)])
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()  # the tensors are in memory: nothing is left to wait for
    try:
        model, report = model_class.from_pretrained(
            None,
            config=config,
            state_dict={place: tensors[name] for place, name in state.items()},
            dtype=dtype,
            attn_implementation="sdpa",
            output_loading_info=True,
        )
    except (RuntimeError, ValueError) as error:
        raise ModelSourceError(
            f"The weights of {files.target_id} do not fit its config.json ({error}).", hint="Fetch the model again."
        ) from error
    finally:
        if bars:
            transformers_logging.enable_progress_bar()
    missing = sorted(report["missing_keys"])
    if missing:
        raise ModelSourceError(
            f"The weights of {files.target_id} lack {len(missing)} tensors, {missing[0]} among them.",
            hint="Fetch the model again.",
        )
    return cast(PreTrainedModel, model.eval().requires_grad_(False))


def part_names(files: ModelFiles, last_layers: int = 0) -> list[str]:
    """The tensors that a client reads: embeddings, final norm, head and the last N decoder layers."""
    count = int(files.config["num_hidden_layers"])
    layers = _places(files, range(count - last_layers, count))
    return [name for name in layers if name != HEAD] + [HEAD]


def has_own_head(files: ModelFiles) -> bool:
    """Whether the head is other weights than the embeddings."""
    return HEAD in _stored(files) and not _is_tied(files)


def load_part(files: ModelFiles, names: Iterable[str], dtype: torch.dtype | None = None) -> dict[str, torch.Tensor]:
    """Read only these tensors from the disk.

    Args:
        names: as in the checkpoint; `lm_head.weight` of a tied model gives the embeddings.
        dtype: convert to it; None: as stored.

    Raises:
        ModelSourceError: a file is corrupt, or holds no such tensor.
    """
    wanted = list(dict.fromkeys(names))
    stored = _stored(files)
    aliases = {name: EMBEDDINGS if name == HEAD and HEAD not in stored and _is_tied(files) else name for name in wanted}
    for name in aliases.values():
        if name not in stored:
            raise ModelSourceError(
                f"The weights of {files.target_id} hold no tensor {name}.", hint="Fetch the model again."
            )
    read: dict[str, torch.Tensor] = {}
    for path in files.weights:
        here = sorted({name for name in aliases.values() if stored[name] == path})
        if not here:
            continue
        with _open(path) as file:
            for name in here:
                tensor = cast(torch.Tensor, file.get_tensor(name))
                if tensor.dtype is torch.int8:
                    tensor = _widen(tensor, file, name)
                read[name] = tensor if dtype is None else tensor.to(dtype)
    return {name: read[alias] for name, alias in aliases.items()}


def _places(files: ModelFiles, kept: Sequence[int]) -> dict[str, str]:
    """Stored name -> name in a model of only these layers."""
    count = int(files.config["num_hidden_layers"])
    if any(not 0 <= layer < count for layer in kept):
        raise ModelSourceError(
            f"{files.target_id} has the layers 0 to {count - 1}, asked were {list(kept)}.",
            hint="Ask for fewer layers.",
        )
    renumbered = {layer: place for place, layer in enumerate(kept)}
    places = {}
    for name in _stored(files):
        if not name.startswith("model.layers."):
            places[name] = name
            continue
        _, _, layer_text, rest = name.split(".", 3)
        layer = int(layer_text)
        if layer in renumbered:
            places[name] = f"model.layers.{renumbered[layer]}.{rest}"
    return places


def _stored(files: ModelFiles) -> dict[str, Path]:
    """Tensor name -> the file that holds it, from the headers of the files themselves."""
    stored: dict[str, Path] = {}
    for path in files.weights:
        with _open(path) as file:
            stored.update((name, path) for name in file.keys() if not name.endswith(SCALE))  # noqa: SIM118
    return stored


def _widen(tensor: torch.Tensor, file: Any, name: str) -> torch.Tensor:
    """int8 rows times their scales."""
    try:
        scales: torch.Tensor = file.get_tensor(name + SCALE)
        return tensor.float() * scales[:, None]
    except (SafetensorError, RuntimeError, IndexError) as error:
        raise ModelSourceError(f"The scales of {name} cannot be used ({error}).", hint=_CORRUPT) from None


def _is_tied(files: ModelFiles) -> bool:
    return bool(files.config.get("tie_word_embeddings", False))


def _open(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ModelSourceError(f"The weights {path} cannot be read ({error}).", hint=_CORRUPT) from error
