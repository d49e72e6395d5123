"""The authors' vectors (../shared/parity, see its README) as fixtures."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from moa_server.verifier.torch_target import TorchTarget
from moa_shared.drafter.checkpoint import Checkpoint
from moa_shared.drafter.kinds import DrafterConfig
from moa_shared.drafter.kinds.moa_decoder import DraftDecoder
from moa_shared.drafter.kinds.weights import ArrayWeights
from moa_shared.models.storage.tensors import map_tensors
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from tests.support.decoders import decoder_of


@dataclass(frozen=True)
class Reference:
    """Everything of configuration `a`."""

    folder: Path
    manifest: dict[str, Any]
    train: dict[str, np.ndarray]
    infer: dict[str, np.ndarray]
    weights: dict[str, torch.Tensor]

    def config(self, reused_layers: int) -> DrafterConfig:
        llama, moa = self.manifest["llama_config"], self.manifest["moa_config"]
        return DrafterConfig(
            vocab_size=llama["vocab_size"],
            hidden_size=llama["hidden_size"],
            target_layers=llama["num_hidden_layers"],
            target_heads=llama["num_attention_heads"],
            target_kv_heads=llama["num_key_value_heads"],
            target_head_dim=self.manifest["head_dim"],
            sa_kv_heads=moa["self_attention_num_key_value_heads"],
            sa_mlp=moa["self_attention_intermediate_size"],
            ca_kv_heads=moa["cross_attention_num_key_value_heads"],
            ca_mlp=moa["cross_attention_intermediate_size"],
            lsa_heads=llama["num_attention_heads"],
            lsa_kv_heads=moa["layer_self_attention_num_key_value_heads"],
            lsa_mlp=moa["layer_self_attention_intermediate_size"],
            rms_norm_eps=llama["rms_norm_eps"],
            rope_parameters={"rope_type": "default", "rope_theta": llama["rope_theta"]},
            reused_layers=reused_layers,
        )

    def checkpoint(self, reused_layers: int) -> Checkpoint:
        return self.authors(f"a_moa_n{reused_layers}.safetensors", self.config(reused_layers))

    def authors(self, name: str, config: DrafterConfig) -> Checkpoint:
        """A checkpoint of theirs, which does not contain its configuration."""
        return Checkpoint(config, ArrayWeights(map_tensors(self.folder / name)), "")

    def model(self) -> LlamaForCausalLM:
        values = {key: value for key, value in self.manifest["llama_config"].items() if key != "torch_dtype"}
        model = LlamaForCausalLM(LlamaConfig(**values)).eval()
        model.load_state_dict(self.weights)
        return model

    def target(self) -> TorchTarget:
        return TorchTarget(self.model())

    def arrays(self) -> ArrayWeights:
        return ArrayWeights({name: tensor.numpy() for name, tensor in self.weights.items()})

    def decoder(self, reused_layers: int) -> DraftDecoder:
        return decoder_of(self.checkpoint(reused_layers), self.arrays(), "float32")


@pytest.fixture(scope="session")
def reference(shared_dir: Path) -> Reference:
    folder = shared_dir / "parity"
    return Reference(
        folder,
        json.loads((folder / "manifest.json").read_text())["configs"]["a"],
        dict(np.load(folder / "a_train.npz")),
        dict(np.load(folder / "a_infer.npz")),
        load_file(folder / "a_target.safetensors"),
    )
