"""Reading a resolved target into torch: the whole model, or some tensors of it; and what makes it quick there.

Imports torch and transformers; `moa_shared.models` imports this module only when one of its functions is called.
"""

from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.distributed import DistributedConfig
from transformers.utils import logging as transformers_logging

from moa_shared.errors import ModelSourceError
from moa_shared.models.sources.files import ModelFiles
from moa_shared.models.weights.parts import layer_places
from moa_shared.models.weights.weights import WeightReader


def load_config(files: ModelFiles) -> PreTrainedConfig:
    return cast(PreTrainedConfig, AutoConfig.from_pretrained(files.folder, local_files_only=True))


def load_target_model(files: ModelFiles, dtype: torch.dtype = torch.float32, *, shares: int = 1) -> PreTrainedModel:
    """The target, in evaluation mode and without gradients.

    `shares`: processes that share it by transformers' tensor-parallel plan, each on its accelerator; they have met
    (`torch.distributed`), and all call this.
    """
    config = load_config(files)
    state = {place: name for name, place in layer_places(files, range(config.num_hidden_layers)).items()}
    names = dict.fromkeys(state.values())
    tensors: Mapping[str, torch.Tensor | TensorOnDemand]
    if shares > 1:
        reader = WeightReader(files)
        tensors = {name: TensorOnDemand(reader, name, dtype) for name in names}
    else:
        tensors = load_part(files, names, dtype)
    model_class = cast(type[PreTrainedModel], MODEL_FOR_CAUSAL_LM_MAPPING[type(config)])
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()  # the tensors are in memory: nothing is left to wait for
    try:
        model, report = model_class.from_pretrained(
            None,
            config=config,
            state_dict={place: tensors[name] for place, name in state.items()},
            dtype=dtype,
            attn_implementation="eager" if getattr(config, "attn_logit_softcapping", None) else "sdpa",  # has no caps
            output_loading_info=True,
            distributed_config=DistributedConfig(tp_size=shares) if shares > 1 else None,
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


class TensorOnDemand:
    """A tensor of a file of which a part is to be read, with what transformers asks of safetensors' own kind.

    Each is read whole for as long as its part is taken, so that a process holds little more than its share.
    """

    def __init__(self, reader: WeightReader, name: str, dtype: torch.dtype) -> None:
        self._reader, self._name, self._dtype = reader, name, dtype

    def get_shape(self) -> list[int]:
        return list(self._reader.shape(self._name))

    def __getitem__(self, index: Any) -> torch.Tensor:
        whole = torch.from_numpy(self._reader.array(self._name))
        return whole[index].to(self._dtype, copy=True)


def load_part(files: ModelFiles, names: Iterable[str], dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Read only these tensors; `lm_head.weight` of a tied model gives the embeddings."""
    reader = WeightReader(files)
    return {name: torch.from_numpy(reader.array(name)).to(dtype) for name in dict.fromkeys(names)}
