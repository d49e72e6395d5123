"""What is found in the usual places, by which names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa_shared.errors import NotFoundError
from moa_shared.models import library
from moa_shared.models.library import hub_models, installed_models, models_in

from tests.support.messages import raises
from tests.support.model_places import places, put_into_hub, put_into_ollama  # noqa: F401 (a fixture)
from tests.support.tiny_gguf import GgufWriter


@pytest.fixture(autouse=True)
def _nothing_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(library, "find_installed", lambda *_: None)
    monkeypatch.setattr(library, "_OLLAMAS_SERVICE", tmp_path / "none")


def names(places: dict[str, Path]) -> list[str]:  # noqa: F811
    return [f"{model.name} ({model.place}) {model.path.name}" for model in installed_models()]


def test_nothing_is_found_where_there_is_nothing(places: dict[str, Path]) -> None:  # noqa: F811
    assert names(places) == []
    for folder in places.values():
        folder.rmdir()
    assert names(places) == []


def test_the_hubs_cache(places: dict[str, Path], write_gguf: GgufWriter, tmp_path: Path) -> None:  # noqa: F811
    path, config = write_gguf(), tmp_path / "config.json"
    config.write_text("{}")
    several = ["A-Q4_K_M.gguf", "A-Q8_0.gguf", "mmproj-A-F16.gguf", "deep/A-UD-Q2_K-00001-of-00002.gguf"]
    several += ["deep/A-UD-Q2_K-00002-of-00002.gguf", "a.gguf", "x/B-Q6_K.gguf", "y/B-q6_k.gguf"]
    put_into_hub(places["hub"], "owner/A-GGUF", dict.fromkeys(several, path))
    put_into_hub(places["hub"], "owner/A-GGUF", {"A-Q4_0.gguf": path}, commit="c1", ref="refs/pr/1")
    put_into_hub(places["hub"], "owner/B", {"config.json": config, "model.safetensors": config})
    put_into_hub(places["hub"], "owner/B", {"config.json": config, "model.safetensors": config}, "c1", None)
    put_into_hub(places["hub"], "owner/C", {"config.json": config})
    put_into_hub(places["hub"], "gpt2", {"C-Q8_0.gguf": path}, ref=None)
    (places["hub"] / "datasets--owner--D" / "snapshots").mkdir(parents=True)
    (places["hub"] / "models--owner--E" / "refs").mkdir(parents=True)
    (places["hub"] / "models--owner--E" / "refs" / "main").write_text("../../somewhere")
    assert names(places) == snapshot(
        [
            "gpt2@c0:Q8_0 (hub) C-Q8_0.gguf",
            "owner/A-GGUF:Q4_K_M (hub) A-Q4_K_M.gguf",
            "owner/A-GGUF:Q8_0 (hub) A-Q8_0.gguf",
            "owner/A-GGUF:a.gguf (hub) a.gguf",
            "owner/A-GGUF:UD-Q2_K (hub) A-UD-Q2_K-00001-of-00002.gguf",
            "owner/A-GGUF:x/B-Q6_K.gguf (hub) B-Q6_K.gguf",
            "owner/A-GGUF:y/B-q6_k.gguf (hub) B-q6_k.gguf",
            "owner/A-GGUF@refs/pr/1:Q4_0 (hub) A-Q4_0.gguf",
            "owner/B (hub) c0",
        ]
    )


def test_the_newest_of_nameless_snapshots(tmp_path: Path, write_gguf: GgufWriter) -> None:
    for commit, when in (("c1", 200), ("c2", 100)):
        os.utime(put_into_hub(tmp_path / "hub", "owner/A", {"A-Q8_0.gguf": write_gguf()}, commit, None), (when, when))
    assert [model.name for model in hub_models(tmp_path / "hub")] == ["owner/A@c1:Q8_0"]


def test_ollama(places: dict[str, Path], write_gguf: GgufWriter) -> None:  # noqa: F811
    path, folder = write_gguf(), places["ollama"]
    put_into_ollama(folder, "registry.ollama.ai/library/llama3.2/3b", path, "template", "params")
    put_into_ollama(folder, "registry.ollama.ai/somebody/tuned/latest", path, "adapter")
    put_into_ollama(folder, "hf.co/owner/A-GGUF/Q4_K_M", path, "projector")
    put_into_ollama(folder, "registry.ollama.ai/library/in-the-cloud/latest", None)
    put_into_ollama(folder, "registry.ollama.ai/library/broken/latest", path).write_text("{")
    put_into_ollama(folder, "registry.ollama.ai/library/odd/latest", path).write_text('{"layers": [7]}')
    hostile = '{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:../../x"}]}'
    put_into_ollama(folder, "registry.ollama.ai/library/hostile/latest", path).write_text(hostile)
    (folder / "manifests" / "stray").write_text("")
    assert [(model.name, model.path.name[:10]) for model in installed_models()] == snapshot(
        [("hf.co/owner/A-GGUF:Q4_K_M", "sha256-5b3"), ("llama3.2:3b", "sha256-5b3")]
    )


def test_ollamas_folder_may_be_named(
    places: dict[str, Path],  # noqa: F811
    write_gguf: GgufWriter,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put_into_ollama(tmp_path / "named", "registry.ollama.ai/library/a/1b", write_gguf())
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "named"))
    assert [model.name for model in installed_models()] == ["a:1b"]


def test_lm_studio(places: dict[str, Path], write_gguf: GgufWriter) -> None:  # noqa: F811
    repository = places["lm studio"] / "owner" / "A-GGUF"
    repository.mkdir(parents=True)
    write_gguf().rename(repository / "A-Q4_K_M.gguf")
    (places["lm studio"] / "owner" / "notes.txt").write_text("")
    assert names(places) == ["owner/A-GGUF:Q4_K_M (LM Studio) A-Q4_K_M.gguf"]


def test_a_folder_that_is_named(write_gguf: GgufWriter, model_folder: Path, tmp_path: Path) -> None:
    path = write_gguf("a.gguf")
    (tmp_path / "b-00002-of-00002.gguf").write_bytes(path.read_bytes())
    assert [model.path for model in models_in(tmp_path)] == [path, tmp_path / "b-00002-of-00002.gguf", model_folder]
    assert [model.name for model in models_in(path)] == [str(path)]
    assert list(models_in(model_folder / "config.json")) == []
    with raises(NotFoundError, snapshot("There is no folder TMP/none. Check the name.")):
        list(models_in(tmp_path / "none"))
