import json
from pathlib import Path

import pytest
import torch
from moa_shared.drafter.kinds import DrafterConfig
from moa_shared.errors import ConfigError
from moa_shared.models import ModelFiles
from moa_training.data.shards import TokenRow
from moa_training.fit.setup import choose_draft_ids, drafter_config, starting_tensors
from moa_training.teacher.teacher import Teacher, load_teacher

from tests.support.families import DENSE_FAMILIES, tiny_dense
from tests.support.tiny_models import SMALL, tiny_model
from tests.support.tiny_training import tiny_settings


@pytest.mark.parametrize("family", [family for family in DENSE_FAMILIES if family != "mistral without a window"])
def test_targets_of_another_form_are_refused(family: str) -> None:
    files = ModelFiles("tiny", Path(), tiny_dense(family).config.to_dict(), (), "", "")
    with pytest.raises(ConfigError, match=r"not trained for tiny, a .*: only for llama, qwen2, qwen3, mistral without"):
        drafter_config(tiny_settings(), files)


@pytest.mark.parametrize(("kind", "entries"), [("eagle3", (2, 15, 27)), ("dflash", (2, 9, 15, 21, 28))])
def test_the_states_read_are_the_authors_unless_they_are_chosen(
    tmp_path: Path, kind: str, entries: tuple[int, ...]
) -> None:
    def configured(layers: int, **chosen: object) -> DrafterConfig:
        made = tiny_model("qwen3", **SMALL, num_hidden_layers=layers).config
        (tmp_path / "config.json").write_text(json.dumps(made))
        asked = tiny_settings(drafter={"kind": kind, **chosen})
        return drafter_config(asked, ModelFiles("tiny", tmp_path, made, (), "", ""))

    assert configured(30).state_entries == entries
    assert configured(30).head_norms  # as the target's
    assert configured(30, state_entries=[0, 30]).state_entries == (0, 30)
    with pytest.raises(ConfigError, match="A target of 2 layers has too few"):
        configured(2)
    with pytest.raises(ConfigError, match="state_entries must be 0 to target_layers"):
        configured(30, state_entries=[31])


def setup(files: ModelFiles, reused: int, **sizes: int) -> tuple[DrafterConfig, Teacher]:
    settings = tiny_settings(drafter={"reused_layers": reused, "draft_vocab": 0, "lsa_mlp": 16, **sizes})
    return drafter_config(settings, files), load_teacher(files, reused, torch.float32, torch.device("cpu"))


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


def test_sizes_that_do_not_fit_are_refused(files: ModelFiles) -> None:
    config, teacher = setup(files, 0, ca_mlp=40)
    with pytest.raises(
        ConfigError, match=r"needs cross_attention of the target's own sizes: .* \(40, 64\), the target's"
    ):
        starting_tensors(config, teacher, None, 0, warm=True)
    with pytest.raises(ConfigError, match="configuration is wrong: lsa_heads must divide the KV width"):
        setup(files, 0, lsa_heads=5)


def test_answers_come_first_then_prompts_then_low_ids() -> None:
    rows = [TokenRow([9, 9, 9, 5, 5, 6], [(3, 6)])]
    assert choose_draft_ids(rows, 2, 12)[0].tolist() == [5, 6]
    ids, covered = choose_draft_ids(rows, 4, 12)
    assert ids.tolist() == [0, 5, 6, 9]
    assert ids.dtype == torch.int32
    assert covered == 1.0
    assert abs(choose_draft_ids(rows, 1, 12)[1] - 2 / 3) < 1e-9
