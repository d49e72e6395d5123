"""`moa-server` as a user meets it: refusals with their exit codes, a served model from start to SIGTERM, and commands about what lies on
this machine: models, capacity, doctor.
"""

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import grpc
import pytest
from click.testing import CliRunner, Result
from inline_snapshot import snapshot
from moa.v1 import moa_pb2 as pb
from moa.v1 import moa_pb2_grpc
from moa_server.cli import cli, main
from moa_server.commands.serve import run as run_server
from moa_server.settings import ServerSettings
from moa_shared.drafter.checkpoint import load_checkpoint
from moa_shared.errors import ConfigError, MoaError
from moa_shared.models import source
from moa_shared.models.source import PACKAGED

from tests.support.messages import steady
from tests.support.model_places import FakeHub, places, put_into_hub, put_into_ollama, serving  # noqa: F401 (a fixture)
from tests.support.programs import environment, started
from tests.support.tiny_gguf import GgufWriter
from tests.support.tiny_models import SMALL, save_drafter, save_tiny_model, small_drafter

ENVIRONMENT = environment("proto", "shared", "server", "kernels")


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model with a tokenizer, as save_pretrained writes it."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    return save_tiny_model(folder, seed=1, num_hidden_layers=2, max_position_embeddings=64)


@pytest.fixture(autouse=True)
def _nothing_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(source, "_OLLAMAS_SERVICE", tmp_path / "none")


def make_drafter(path: Path, **changes: object) -> Path:
    """A random one of the tiny model."""
    return save_drafter(path, small_drafter(**{"target_layers": 2, **changes}))


def fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    """Exit code and standard error of a command that must not serve."""
    monkeypatch.setenv("MOA_SERVER_LOG_FORMAT", "plain")
    monkeypatch.setenv("MOA_SERVER_PORT", "0")
    monkeypatch.setattr(sys, "argv", ["moa-server", *map(str, arguments)])
    with pytest.raises(SystemExit) as caught:
        main()
    assert isinstance(caught.value.code, int)
    return caught.value.code, steady(capsys.readouterr().err)


def test_what_cannot_be_served_is_one_sentence_with_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model_folder: Path, tmp_path: Path
) -> None:
    def check(code: int, words: str, *arguments: object) -> None:
        found, err = fails(monkeypatch, capsys, "serve", *arguments)
        assert (found, words in err.splitlines()[-1]) == (code, True), err

    check(2, "Error: --port is '99999': expected at most 65535.", "--port", "99999")
    check(2, "--execution is 'fp8': expected 'auto', 'int8', 'float32' or 'bf16'.", "--execution", "fp8")
    check(2, "No such option '--colour'.", "--colour", "red")
    check(66, "There is no file CHECKOUT/nowhere/model.gguf.", "./nowhere/model.gguf")
    (tmp_path / "moa.toml").write_text("[server]\ncolour = 'red'\n")
    check(2, "colour in [server] of TMP/moa.toml is not a setting.", "--config", tmp_path / "moa.toml")
    check(66, "The configuration file TMP/none.toml does not exist.", "--config", tmp_path / "none.toml")

    code, err = fails(monkeypatch, capsys, "cache", "prune", "--days", "3")
    assert (code, err.startswith("Error: cache is not a command any more")) == (2, True)

    path = tmp_path / "drafter.safetensors"
    check(66, "No deep drafter comes with moa for tiny.", model_folder, "--drafter", "deep")
    make_drafter(path, target_fingerprint="ab" * 32)
    check(65, "is for another target: its fingerprint is DIGEST", model_folder, "--drafter", path)
    path.write_bytes(path.read_bytes()[:-100])
    check(65, "drafter.safetensors is corrupt or truncated", model_folder, "--drafter", path)
    monkeypatch.setenv("MOA_SERVER_COLOUR", "red")
    check(2, "MOA_SERVER_COLOUR is not a setting.")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_start_before_the_imports_that_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "moa_server.app", None)  # whose import then fails
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with pytest.raises(ImportError):
        run_server(ServerSettings())
    assert "Starting moa-server" in terminal.getvalue()


def never(*_: object) -> NoReturn:
    raise AssertionError("the target was loaded")


def test_port_drafter_and_context_are_checked_before_the_target_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model_folder: Path, tmp_path: Path
) -> None:
    def check(code: int, words: str, *arguments: object) -> None:
        found, err = fails(monkeypatch, capsys, "serve", model_folder, "--port", 0, *arguments)
        assert (found, words in err) == (code, True), err

    with socket.create_server(("127.0.0.1", 0)) as taken, monkeypatch.context() as patch:
        port = taken.getsockname()[1]
        patch.setattr("moa_server.loading.resolve", never)
        check(2, "Error: Cannot listen on 127.0.0.1:PORT: it is in use", "--port", port)
        check(2, "Choose another --metrics-host or --metrics-port", "--metrics-port", port)
        check(2, "conversations would cross the network without encryption", "--host", "0.0.0.0")
        check(2, "The certificate has no private key.", "--tls-cert", tmp_path / "none.pem")
    monkeypatch.setattr("moa_server.loading.load_execution", never)
    check(2, "Cannot listen on 203.0.113.1:0", "--host", "203.0.113.1")
    check(66, "There is no drafter checkpoint TMP/none.", "--drafter", tmp_path / "none")
    check(
        65,
        "its number of layers is 3, tiny has 2.",
        "--drafter",
        make_drafter(tmp_path / "d.safetensors", target_layers=3),
    )
    check(2, "The context length is 65, tiny holds 64 tokens.", "--context-length", 65)


def test_with_json_logs_standard_error_is_lines_of_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], write_gguf: GgufWriter
) -> None:
    monkeypatch.setattr(sys, "argv", ["moa-server", "serve", str(write_gguf()), "--port", "0", "--log-format", "json"])
    monkeypatch.setenv("MOA_KERNELS", "sse2")
    with pytest.raises(SystemExit) as caught:
        main()
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert caught.value.code == 2
    assert lines[0]["event"] == "begun"
    assert lines[0]["task"].startswith("Preparing tiny.gguf")
    assert (lines[-1]["event"], lines[-1]["level"], lines[-1]["code"]) == ("not serving", "error", "config")
    assert "MOA_KERNELS=sse2" in lines[-1]["reason"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_serves_and_ends_cleanly(model_folder: Path, tmp_path: Path, number: signal.Signals) -> None:
    drafter, ready = make_drafter(tmp_path / "drafter.safetensors", reused_layers=1), tmp_path / "ready"
    command = [sys.executable, "-m", "moa_server.cli", "serve", str(model_folder), "--port", "0", "--threads", "1"]
    options = ["--drafter", str(drafter), "--ready-file", str(ready), "--log-format", "json"]
    options += ["--allow-ignore-end-of-text"]
    with started([*command, *options], ENVIRONMENT) as server:
        line = server.out.readline()
        found = re.fullmatch(r"serving tiny on (127\.0\.0\.1:\d+)\n", line)
        assert found, line
        with grpc.insecure_channel(found[1]) as channel:
            stub = moa_pb2_grpc.MoaStub(channel)
            said = stub.Describe(pb.DescribeRequest())
            assert said.identity.drafter_fingerprint.hex() == load_checkpoint(drafter).fingerprint
            assert [drafter.reused_layers for drafter in said.drafters] == [1]
            assert said.execution.level == "int8"
            request = pb.GenerateRequest(tokens=[1, 5, 9], sampling=pb.Sampling(max_tokens=4))
            assert sum(len(response.tokens) for response in stub.Generate(request)) in range(1, 5)
            assert ready.read_text() == f"{found[1]}\n"
            running = stub.Generate(pb.GenerateRequest(tokens=[1], sampling=pb.Sampling(ignore_end_of_text=True)))
            next(running)
            server.process.send_signal(number)
            assert [response.finish for response in running][-1] in (pb.FINISH_DRAINING, pb.FINISH_CONTEXT)
        code, out, err = server.end()
    assert code == 0, err
    assert out == ""
    assert f'"signal": "{number.name}"' in err
    assert '"event": "stopped"' in err


def test_a_reload_while_the_model_is_loaded_ends_nothing(model_folder: Path) -> None:
    """There is nothing to read again yet."""

    def load(*_: object) -> NoReturn:
        os.kill(os.getpid(), signal.SIGHUP)
        raise ConfigError("It was loaded.")

    settings = ServerSettings(model=str(model_folder), port=0, drafter="none", log_format="plain")
    with pytest.raises(ConfigError, match="It was loaded"):
        run_server(settings, load)


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
    told: dict[str, object] = {"gguf": {"architecture": "llama"}}  # and nothing of a chat template
    repos = {
        "o/A-GGUF": {"A-Q8_0.gguf": write_gguf().read_bytes()},
        "AngelSlim/Qwen3-1.7B_eagle3": {"config.json": b"{}"},
    }
    repos["Qwen/Qwen3-1.7B-GGUF"] = {"Qwen3-1.7B-Q8_0.gguf": b"GGUF"}
    with serving(FakeHub(repos, told=told)) as hub:
        environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf")}

        def pull(spec: str) -> tuple[int, str, str]:
            words = [sys.executable, "-m", "moa_server.cli", "pull", spec]
            done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=False)
            return done.returncode, done.stdout, steady(done.stderr)

        code, out, err = pull("o/A-GGUF")
        assert (code, out) == (0, "o/A-GGUF:Q8_0\n")
        words = "o/A-GGUF has no chat template: it continues raw text, and answers no chat.\nFetching o/A-GGUF"
        assert err.startswith(words)
        code, _, err = pull("o/A-GGUF:Q2_K")
        assert (code, "o/A-GGUF holds no GGUF file 'Q2_K', only A-Q8_0.gguf." in err) == (66, True)
        assert pull("A") == (
            2,
            "",
            "Error: 'A' is no model of a hub. Name OWNER/NAME, OWNER/NAME:Q4_K_M, or one of `moa-server models --all`.\n",
        )
        assert pull("default")[:2] == (0, "default\n")
        code, out, err = pull("qwen3-1.7b")
        assert (code, out) == (0, "qwen3-1.7b\n")
        assert "qwen3-1.7b is served without it: The hub has no model Qwen/Qwen3-0.6B-GGUF" in err
        assert list(tmp_path.glob("hf/hub/models--AngelSlim--Qwen3-1.7B_eagle3/snapshots/*/config.json"))
    assert (tmp_path / "hf" / "hub" / "models--o--A-GGUF" / "refs" / "main").is_file()


def test_the_catalogue_for_people_and_for_programs() -> None:
    told = {each["name"]: each for each in json.loads(run("models", "--all", "--json"))}
    assert told["qwen3-4b"]["hub"] == "Qwen/Qwen3-4B-GGUF:Q4_K_M"
    assert [line.split()[0] for line in run("models", "--all").splitlines()][1:-1] == list(told)
    assert run("models", "--all", "mine") == "--all lists no folders. Leave one of the two out."


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


def doctor(*words: object) -> Result:
    return CliRunner().invoke(cli, ["doctor", *map(str, words)])


def test_problems_are_named_and_the_steps_that_need_them_left_out(model_folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = doctor(model_folder, "--port", port, "--kv-bytes", 10**15, "--execution", "float32", "--json")
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
