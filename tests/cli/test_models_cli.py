"""`moa-server models`, and serving what it shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from inline_snapshot import snapshot
from moa_server.cli import cli
from moa_shared.errors import MoaError
from moa_shared.models import resolve
from moa_shared.models.sources import source
from moa_shared.models.sources.packaged import PACKAGED

from tests.support.fake_hub import FakeHub, serving
from tests.support.messages import steady
from tests.support.model_places import places, put_into_hub, put_into_ollama  # noqa: F401 (a fixture)
from tests.support.tiny_gguf import GgufWriter
from tests.support.tiny_models import SMALL, save_tiny_model


@pytest.fixture(autouse=True)
def _nothing_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MOA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(source, "_OLLAMAS_SERVICE", tmp_path / "none")


def run(*words: object) -> str:
    result = CliRunner().invoke(cli, list(map(str, words)))
    if isinstance(result.exception, MoaError):
        return steady(str(result.exception))
    assert result.exit_code == 0, result.exception
    return result.stdout


@pytest.mark.torch
def test_the_models_of_a_machine(
    places: dict[str, Path],  # noqa: F811
    write_gguf: GgufWriter,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(PACKAGED, "gemma3-270m")  # which may be installed
    put_into_ollama(places["ollama"], "registry.ollama.ai/library/tiny/3b", write_gguf())
    put_into_hub(places["hub"], "owner/Tiny-GGUF", {"Tiny-Q4_1.gguf": write_gguf(kind="Q4_1", architecture="qwen2")})
    put_into_hub(places["hub"], "owner/Bert-GGUF", {"Bert-Q8_0.gguf": write_gguf(architecture="bert")})
    folder = save_tiny_model(tmp_path / "mine", seed=1, **SMALL, num_hidden_layers=2, max_position_embeddings=64)
    (folder / "cut.gguf").write_bytes(b"GGUF")
    monkeypatch.chdir(tmp_path)
    assert run("models", "mine") == snapshot("""\
name                  where       size  format  family  drafter        served
default               package  98.4 MB  Q4_1    llama   default, deep  yes
owner/Bert-GGUF:Q8_0  hub      35.0 kB  Q8_0    bert    -              no: it is of the model family 'bert', which moa does not read from GGUF
owner/Tiny-GGUF:Q4_1  hub      24.1 kB  Q4_1    qwen2   -              yes
tiny:3b               ollama   35.0 kB  Q8_0    llama   -              yes
mine                  folder   89.0 kB  F32     llama   -              raw text only: no chat template
mine/cut.gguf         folder   4 bytes  -       -       -              no: it ends within its header
""")
    told = {each["name"]: each for each in json.loads(run("models", "mine", "--json"))}
    assert told["owner/Bert-GGUF:Q8_0"].pop("hint").startswith("Choose a model of one of the families")
    assert steady(json.dumps(told["owner/Bert-GGUF:Q8_0"], indent=1)) == snapshot("""\
{
 "name": "owner/Bert-GGUF:Q8_0",
 "where": "hub",
 "path": "TMP/home/hub/models--owner--Bert-GGUF/snapshots/c0/Bert-Q8_0.gguf",
 "files": [
  "TMP/home/hub/models--owner--Bert-GGUF/snapshots/c0/Bert-Q8_0.gguf"
 ],
 "bytes": 35008,
 "format": "Q8_0",
 "family": "bert",
 "drafters": [],
 "chat": true,
 "served": false,
 "reason": "TMP/home/hub/models--owner--Bert-GGUF/snapshots/c0/Bert-Q8_0.gguf is of the model family 'bert', which moa does not read from GGUF."
}\
""")
    assert {name: each["drafters"] for name, each in told.items() if each["drafters"]} == {
        "default": ["default", "deep"]
    }


def test_a_machine_without_models(
    places: dict[str, Path],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(source, "find_installed", lambda *_: None)
    assert run("models") == snapshot("""\
No models are here: neither in the hub's cache, nor in ollama's or LM Studio's folders, nor in a folder that was named.
`moa-server pull OWNER/NAME:Q4_K_M` fetches one from the hub.
""")
    assert json.loads(run("models", "--json")) == []
    assert run("models", tmp_path / "none") == snapshot("There is no folder TMP/none. Check the name.")


@pytest.mark.torch
def test_a_name_of_the_list_is_served(places: dict[str, Path], write_gguf: GgufWriter) -> None:  # noqa: F811
    path = write_gguf()
    put_into_ollama(places["ollama"], "registry.ollama.ai/library/tiny/latest", path)
    files = resolve("Tiny")
    assert files.target_id == "tiny:latest"
    assert files.fingerprint == resolve(str(path)).fingerprint
    assert "tiny:latest at " in run("capacity", "tiny", "--memory", 10**9, "--drafter", "none")
    hub = {"config.json", "tokenizer.json", "model.safetensors"}
    folder = save_tiny_model(path.parent / "mine", seed=1, **SMALL, num_hidden_layers=2, max_position_embeddings=64)
    put_into_hub(places["hub"], "old", {name: folder / name for name in hub})
    assert resolve("old").target_id == "old"
    assert run("capacity", "tinier") == snapshot(
        "There is no model 'tinier': no such file or folder, no hub id, and not listed by `moa-server models`. Name a model with 'default' or 'gemma3-270m', a hub id (owner/name), a local folder, a .gguf file or a name of that list."
    )


def test_a_model_is_pulled_from_a_mirror(write_gguf: GgufWriter, tmp_path: Path) -> None:
    told: dict[str, object] = {"gguf": {"architecture": "llama"}}  # and nothing of a chat template
    with serving(FakeHub({"o/A-GGUF": {"A-Q8_0.gguf": write_gguf().read_bytes()}}, told={"o/A-GGUF": told})) as hub:
        environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf")}

        def pull(spec: str) -> tuple[int, str, str]:
            words = [sys.executable, "-m", "moa_server.cli", "pull", spec]
            done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=False)
            return done.returncode, done.stdout, steady(done.stderr).partition(": done in")[0]

        assert [pull("o/A-GGUF"), pull("o/A-GGUF:Q2_K"), pull("A"), pull("default")] == snapshot(
            [
                (
                    0,
                    "o/A-GGUF:Q8_0\n",
                    """\
o/A-GGUF has no chat template: it continues raw text, and answers no chat.
Fetching o/A-GGUF from http://127.0.0.1:PORT (35.0 kB) ...
Fetching o/A-GGUF from http://127.0.0.1:PORT: 75 %
Fetching o/A-GGUF from http://127.0.0.1:PORT\
""",
                ),
                (
                    66,
                    "",
                    "Error: o/A-GGUF holds no GGUF file 'Q2_K', only A-Q8_0.gguf. Name one of them, o/A-GGUF:Q8_0 for one.\n",
                ),
                (2, "", "Error: 'A' is no model of a hub. Name OWNER/NAME, or OWNER/NAME:Q4_K_M.\n"),
                (0, "default\n", "default comes in a package, which is installed: nothing is fetched.\n"),
            ]
        )
    assert (tmp_path / "hf" / "hub" / "models--o--A-GGUF" / "refs" / "main").is_file()
