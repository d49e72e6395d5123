"""`moa-server` as a user meets it: help, refusals with their exit codes, a served model from start to SIGTERM."""

import io
import json
import os
import re
import signal
import socket
import sys
from pathlib import Path
from typing import NoReturn

import grpc
import pytest
from moa.v1 import moa_pb2 as pb
from moa.v1 import moa_pb2_grpc
from moa_server.addresses import connect_command
from moa_server.cli import main
from moa_server.commands.serve import run as run_server
from moa_server.settings import ServerSettings
from moa_shared.drafter.checkpoint import load_checkpoint
from moa_shared.errors import ConfigError

from tests.support.messages import steady
from tests.support.programs import environment, started
from tests.support.tiny_gguf import GgufWriter
from tests.support.tiny_models import save_drafter, save_tiny_model, small_drafter

ENVIRONMENT = environment("proto", "shared", "server", "kernels")


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model with a tokenizer, as save_pretrained writes it."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    return save_tiny_model(folder, seed=1, num_hidden_layers=2, max_position_embeddings=64)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOA_CACHE_DIR", str(tmp_path / "cache"))


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


@pytest.mark.parametrize(
    ("host", "shown"),
    [("127.0.0.1", "127.0.0.1:5"), ("::1", "[::1]:5"), ("0.0.0.0", f"{socket.gethostname()}:5 --insecure")],
)
def test_it_says_how_to_connect(host: str, shown: str) -> None:
    assert connect_command(host, 5) == f"moa-client chat --server {shown}"


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
