from __future__ import annotations

import pytest
import torch
from inline_snapshot import snapshot
from moa_shared.drafter import DrafterConfig
from moa_shared.errors import ConfigError
from moa_shared.models import ModelFiles
from moa_training.fit.drafter_setup import drafter_config
from moa_training.fit.warm_start import fit_memory, starting_tensors
from moa_training.objective.layer_memory import FastDrafter
from moa_training.settings import FitSettings
from moa_training.teacher.teacher import Teacher

from tests.support.messages import raises


def setup(files: ModelFiles, reused: int, **sizes: int) -> tuple[DrafterConfig, Teacher]:
    settings = FitSettings.model_validate(
        {
            "shards": ["a"],
            "output": "out",
            "budget": {"tokens": 1},
            "drafter": {"reused_layers": reused, "draft_vocab": 0, "lsa_mlp": 16, **sizes},
        }
    )
    return drafter_config(settings, files), Teacher.load(files, reused, torch.float32, torch.device("cpu"))


@pytest.mark.parametrize("reused", [0, 1, 2])
def test_layers_come_from_the_target(files: ModelFiles, reused: int) -> None:
    config, teacher = setup(files, reused)
    tensors = starting_tensors(config, teacher, None, 0, warm=True)
    layers = teacher.model.model.layers
    assert tensors["self_attention.mlp.up_proj.weight"].equal(layers[0].mlp.up_proj.weight)
    assert tensors["cross_attention.self_attn.q_proj.weight"].equal(layers[3 - reused].self_attn.q_proj.weight)
    assert ("output_norm.weight" in tensors) == (reused == 0)
    cold = starting_tensors(config, teacher, None, 0, warm=False)
    assert not cold["self_attention.mlp.up_proj.weight"].equal(layers[0].mlp.up_proj.weight)
    assert cold["layer_self_attention.mlp.up_proj.weight"].equal(tensors["layer_self_attention.mlp.up_proj.weight"])


def test_sizes_that_are_not_the_targets_are_refused(files: ModelFiles) -> None:
    config, teacher = setup(files, 0, ca_mlp=40)
    with raises(
        ConfigError,
        snapshot(
            "warm_start needs cross_attention of the target's own sizes: cross_attention.mlp.gate_proj.weight is (40, 32), the target's (48, 32). Leave the kv_heads and mlp settings out, or set warm_start = false."
        ),
    ):
        starting_tensors(config, teacher, None, 0, warm=True)


def test_heads_that_do_not_divide_are_refused(files: ModelFiles) -> None:
    with raises(
        ConfigError,
        snapshot(
            "The drafter's configuration is wrong: lsa_heads must divide the KV width. Correct the [drafter] table of the configuration."
        ),
    ):
        setup(files, 0, lsa_heads=5)


def test_fresh_memory_comes_nearer_to_the_state(files: ModelFiles) -> None:
    config, teacher = setup(files, 1)
    drafter = FastDrafter(config)
    tensors = starting_tensors(config, teacher, None, 0, warm=True)
    drafter.load_state_dict(tensors)
    run = teacher.run(torch.randint(0, 96, (8, 60)), torch.arange(60)[None].expand(8, -1), None)
    assert run.state is not None
    before = float((drafter.memory(run.kv) - run.state).square().mean().detach())
    fit_memory(drafter, run.kv, run.state)
    after = float((drafter.memory(run.kv) - run.state).square().mean().detach())
    assert after < 0.8 * float(run.state.var())
    assert after < before
