"""`moa-server`'s commands about what lies on this machine: models, drafters, capacity, doctor."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from inline_snapshot import snapshot
from moa_server import doctor as doctor_steps
from moa_server.cli import cli
from moa_shared.errors import MoaError
from moa_shared.models import source
from moa_shared.models.source import PACKAGED

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
    assert not told["owner/Bert-GGUF:Q8_0"]["served"]
    assert {name: each["drafters"] for name, each in told.items() if each["drafters"]} == {
        "default": ["default", "deep"]
    }


def test_a_model_is_pulled_from_a_mirror(write_gguf: GgufWriter, tmp_path: Path) -> None:
    with serving(FakeHub({"o/A-GGUF": {"A-Q8_0.gguf": write_gguf().read_bytes()}})) as hub:
        environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf")}

        def pull(spec: str) -> tuple[int, str, str]:
            words = [sys.executable, "-m", "moa_server.cli", "pull", spec]
            done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=False)
            return done.returncode, done.stdout, steady(done.stderr).partition(": done in")[0]

        code, out, err = pull("o/A-GGUF")
        assert (code, out) == (0, "o/A-GGUF:Q8_0\n")
        assert err.startswith("Fetching o/A-GGUF")
        code, _, err = pull("o/A-GGUF:Q2_K")
        assert (code, "o/A-GGUF holds no GGUF file 'Q2_K', only A-Q8_0.gguf." in err) == (66, True)
        assert pull("A") == (2, "", "Error: 'A' is no model of a hub. Name OWNER/NAME, or OWNER/NAME:Q4_K_M.\n")
        assert pull("default")[:2] == (0, "default\n")
    assert (tmp_path / "hf" / "hub" / "models--o--A-GGUF" / "refs" / "main").is_file()


@pytest.mark.usefixtures("places")
def test_of_a_model_that_is_not_here() -> None:
    text = run("drafters", "meta-llama/Llama-3-8B-Instruct")
    assert text == snapshot("""\
drafter                                  kind                   where  trained for                          licence
huawei-noah/MOASpec-Llama-3-8B-Instruct  Mixture of Attentions  hub    meta-llama/Meta-Llama-3-8B-Instruct  mit
yuhuili/EAGLE-LLaMA3-Instruct-8B         EAGLE-2                hub    meta-llama/Meta-Llama-3-8B-Instruct  see its page
To fetch one and use it: moa-server serve meta-llama/Llama-3-8B-Instruct --drafter huawei-noah/MOASpec-Llama-3-8B-Instruct
""")
    assert run("drafters", "owner/unknown").startswith(
        "No drafter for owner/unknown is known. `moa-train fit` makes one"
    )
    assert "There is no model 'nothing': no such file or folder, and no id on the hub." in run("drafters", "nothing")


@pytest.mark.torch
def test_a_plan_for_people_and_for_programs(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "tiny", seed=1, **SMALL, num_hidden_layers=2, max_position_embeddings=6000)
    options = [model, "--drafter", "none", "--execution", "float32"]
    assert run("capacity", *options, "--memory", 2 * 10**8) == snapshot("""\
tiny at float32
before anybody asks  150.1 MB: weights 86.9 kB, drafters 0 bytes, the program 150.0 MB
keys and values      37.4 MB

tokens  a session takes  sessions that answer at once
  1024         278.5 kB                           134
  4096           1.1 MB                            35
  6000           1.6 MB                            24

Idle sessions keep only their text; the server holds 1024 in all.
""")
    told = json.loads(run("capacity", *options, "--kv-bytes", 10**9, "--json"))
    assert (told["target"], told["level"], told["kv_bytes"]) == ("tiny", "float32", 10**9)
    assert told["sessions"][0] == {"tokens": 1024, "bytes_each": 278528, "that_fit": 3590}
    assert "Take `moa-server doctor --measure`" in run("capacity", "--measure")
    assert "Give one of the two." in run("capacity", "--memory", 10**9, "--kv-bytes", 10**9)


STEPS = ["settings", "model", "drafter", "memory", "disk", "port", "TLS"]
STEPS += ["keys", "CPU", "threads", "speed", "open files"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    return save_tiny_model(folder, seed=1, num_hidden_layers=2, max_position_embeddings=64)


def doctor(*words: object) -> Result:
    return CliRunner().invoke(cli, ["doctor", *map(str, words)])


def test_without_measuring_nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(doctor_steps, "load_execution", load)
    result = doctor("default", "--drafter", "none", "--port", 0)
    assert result.exit_code == 0
    assert re.search(
        r"ok    speed        int8: at most about [\d.e+]+ tokens/s; a plain step reads 1\d\d\.\d MB", result.stdout
    )
    assert re.search(r"ok    memory       .* a conversation of 8192 tokens 19\d\.\d MB", result.stdout)


def test_problems_are_named_and_the_steps_that_need_them_left_out(model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = doctor(model, "--port", port, "--kv-bytes", 10**15, "--execution", "float32", "--json")
    checks = {each["name"]: each for each in json.loads(result.stdout)}
    assert (result.exit_code, list(checks)) == (1, STEPS)
    assert {name: checks[name]["state"] for name in ("model", "drafter", "memory", "port", "speed")} == snapshot(
        {"model": "ok", "drafter": "warn", "memory": "fail", "port": "fail", "speed": "skip"}
    )
    assert steady(checks["port"]["message"] + " / " + checks["port"]["hint"]) == snapshot(
        "Cannot listen on 127.0.0.1:PORT: it is in use, or no address of this machine / Choose another --host or --port (0: any free port)."
    )
    result = doctor("no/such/model", "--port", 0, "--json")
    states = {each["name"]: each["state"] for each in json.loads(result.stdout)}
    assert (result.exit_code, [name for name, state in states.items() if state == "skip"]) == snapshot(
        (1, ["drafter", "memory", "speed"])
    )


@pytest.mark.torch
def test_measuring_loads_the_model_and_says_how_many_users_it_feeds(model: Path) -> None:
    result = doctor(model, "--drafter", "none", "--execution", "float32", "--port", 0, "--measure")
    assert re.search(
        r"ok    speed        float32: a plain step takes .*; about \d+ users? at 5 tokens/s", result.stdout
    )
