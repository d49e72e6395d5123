"""Reading a resolved target into torch: the whole model, or some tensors of it; and what makes it quick there.

Imports torch and transformers; `moa_shared.models` imports this module only when one of its functions is called.
"""

from typing import Any, cast

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.distributed import DistributedConfig
from transformers.utils import logging as transformers_logging

from moa_shared.errors import ModelSourceError
from moa_shared.models.files import ModelFiles
from moa_shared.models.weights import WeightReader, layer_places


def load_config(files: ModelFiles) -> PreTrainedConfig:
    return cast(PreTrainedConfig, AutoConfig.from_pretrained(files.folder, local_files_only=True))


def load_target_model(files: ModelFiles, dtype: torch.dtype = torch.float32, *, shares: int = 1) -> PreTrainedModel:
    """The target, in evaluation mode and without gradients.

    `shares`: processes that share it by transformers' tensor-parallel plan, which have met (`torch.distributed`).
    """
    config, reader = load_config(files), WeightReader(files)
    state = {
        place: TensorOnDemand(reader, name, dtype) if shares > 1 else torch.from_numpy(reader.array(name)).to(dtype)
        for name, place in layer_places(files).items()
    }
    model_class = cast(type[PreTrainedModel], MODEL_FOR_CAUSAL_LM_MAPPING[type(config)])
    transformers_logging.disable_progress_bar()  # the tensors are in memory: nothing is left to wait for
    try:
        model, report = model_class.from_pretrained(
            None,
            config=config,
            state_dict=state,
            dtype=dtype,
            attn_implementation="eager" if getattr(config, "attn_logit_softcapping", None) else "sdpa",  # has no caps
            output_loading_info=True,
            distributed_config=DistributedConfig(tp_size=shares) if shares > 1 else None,
        )
    except (RuntimeError, ValueError) as error:
        what = f"The weights of {files.target_id} do not fit its config.json ({error})."
        raise ModelSourceError(what, hint="Fetch the model again.") from error
    if missing := sorted(report["missing_keys"]):
        what = f"The weights of {files.target_id} lack {len(missing)} tensors, {missing[0]} among them."
        raise ModelSourceError(what, hint="Fetch the model again.")
    return cast(PreTrainedModel, model.eval().requires_grad_(False))


class TensorOnDemand:
    """A tensor of which a part is to be read, as transformers asks it of safetensors; it is whole only meanwhile."""

    def __init__(self, reader: WeightReader, name: str, dtype: torch.dtype) -> None:
        self._reader, self._name, self._dtype = reader, name, dtype

    def get_shape(self) -> list[int]:
        return list(self._reader.shape(self._name))

    def __getitem__(self, index: Any) -> torch.Tensor:
        whole = torch.from_numpy(self._reader.array(self._name))
        return whole[index].to(self._dtype, copy=True)
