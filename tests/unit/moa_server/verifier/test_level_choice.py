"""What is served: the list, plans, examinations and the start of a server give one answer, before anything is loaded."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from moa_kernels.library import library
from moa_server.capacity import plan_capacity
from moa_server.doctor import MachineExamination
from moa_server.settings import ServerSettings
from moa_server.verifier.execution_level import choose_level, load_execution
from moa_shared.errors import ConfigError, MoaError, ModelSourceError
from moa_shared.models import resolve
from moa_shared.models.network import served
from moa_shared.models.sources.source import LocalModel, examine
from moa_shared.programs.progress import SilentProgress
from transformers import PreTrainedModel

from tests.support.families import tiny_dense, tiny_mixture
from tests.support.family_gguf import write_family_gguf
from tests.support.tiny_models import save_tokenizer
from tests.support.torch_models import torch_model

pytestmark = pytest.mark.torch

needs_kernels = pytest.mark.skipif(library() is None, reason="there are no kernels for this CPU")
QWEN_3, MIXTRAL = partial(torch_model, "qwen3"), partial(tiny_mixture, "mixtral")
GEMMA, MINISTRAL = partial(tiny_dense, "gemma 2"), partial(tiny_dense, "ministral")


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOA_CACHE_DIR", str(tmp_path / "cache"))


def save(model: PreTrainedModel, folder: Path, changes: dict[str, Any]) -> Path:
    model.save_pretrained(folder)
    save_tokenizer(folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


def said(ask: Callable[[], object]) -> str:
    with pytest.raises(MoaError) as caught:
        ask()
    return str(caught.value)


def assert_all_refuse(path: Path, root: Path) -> str:
    """What all of them say."""
    settings = ServerSettings(model=str(path), drafter="none", threads=1)
    listed = examine(LocalModel("tiny", "folder", path)).refusal
    files = resolve(str(path))
    examined = next(iter(MachineExamination(settings, SilentProgress(), lambda _: None).run()))
    assert examined.state == "fail"
    told = {
        str(listed),
        said(lambda: load_execution(files, settings, SilentProgress())),
        said(lambda: plan_capacity(settings, 10**10, SilentProgress())),
        f"{examined.message}. {examined.hint}",
    }
    [one] = told
    return one


@needs_kernels
@pytest.mark.parametrize(
    ("make", "changes", "words"),
    [
        (QWEN_3, {"rms_norm_eps": None}, "The configuration does not set rms_norm_eps."),
        (QWEN_3, {"rope_parameters": {"rope_type": "new", "rope_theta": 1e4}}, "'new'} cannot be used"),
        (QWEN_3, {"hidden_act": "nothing"}, "The activation 'nothing' is not known."),
        (GEMMA, {"rope_parameters": {"rope_type": "yarn"}}, "'yarn'} cannot be used"),
        (MINISTRAL, {"hidden_act": "relu"}, "The activation 'relu' is not computed by the kernels."),
        (MINISTRAL, {"head_dim": 48}, "The head dimension is 48, which is no multiple of 32."),
        (MIXTRAL, {"rms_norm_eps": None}, "The configuration does not set rms_norm_eps."),
        (MIXTRAL, {"intermediate_size": 40}, "The MLP width is 40, which is no multiple of 32."),
        (MIXTRAL, {"hidden_act": "gelu"}, "The activation 'gelu' is not computed by the kernels."),
    ],
)
def test_what_no_level_computes_is_refused_alike_everywhere(
    make: Callable[[], PreTrainedModel], changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    assert words in assert_all_refuse(save(make(), tmp_path / "tiny", changes), tmp_path)


@needs_kernels
def test_a_gguf_file_too(tmp_path: Path) -> None:
    path = write_family_gguf(tiny_dense("ministral 3", intermediate_size=48), tmp_path / "tiny.gguf")
    assert "The MLP width is 48, which is no multiple of 32. Choose another model" in assert_all_refuse(path, tmp_path)


@needs_kernels
@pytest.mark.parametrize("changes", [{"head_dim": 48}, {"hidden_act": "gelu"}, {"intermediate_size": 40}])
def test_what_torch_alone_computes_is_served_where_torch_is(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(torch_model("qwen3", **changes), tmp_path / "tiny", {})
    assert examine(LocalModel("tiny", "folder", folder)).refusal is None
    config = resolve(str(folder)).config
    level, reason = choose_level(ServerSettings(), config, "tiny")
    assert level == "bf16"
    assert reason.startswith("The int8 kernels do not compute this target: ")
    assert load_execution(resolve(str(folder)), ServerSettings(threads=1), SilentProgress()).level == "bf16"
    assert choose_level(ServerSettings(execution="float32"), config, "tiny") == ("float32", "")
    with pytest.raises(ModelSourceError, match="which torch computes"):
        choose_level(ServerSettings(execution="int8"), config, "tiny")
    monkeypatch.setattr(served, "find_spec", lambda _: None)
    assert assert_all_refuse(folder, tmp_path).startswith(reason)


def test_levels_that_do_not_compute_a_family() -> None:
    config = tiny_mixture("mixtral").config.to_dict()
    with pytest.raises(ModelSourceError, match="tiny is of the family mixtral, which the torch"):
        choose_level(ServerSettings(execution="bf16"), config, "tiny")
    with pytest.raises(ConfigError, match="is computed on CPUs only"):
        choose_level(ServerSettings(execution="int8", device="cuda"), config, "tiny")
