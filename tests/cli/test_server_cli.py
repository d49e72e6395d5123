"""`moa-server` as a user meets it: help, refusals with their exit codes, a served model from start to SIGTERM."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import grpc
import pytest
import structlog
from click.testing import CliRunner
from moa.v1 import moa_pb2 as pb
from moa.v1 import moa_pb2_grpc
from moa_server.app import connect_command
from moa_server.cli import cli, main
from moa_server.settings import ServerSettings
from moa_shared.drafter import load_checkpoint
from moa_shared.models.gguf.header import read_header

from tests.support.programs import environment, started
from tests.support.tiny_gguf import GgufWriter
from tests.support.tiny_models import SMALL, save_drafter, save_tiny_model, small_drafter

ENVIRONMENT = environment("proto", "shared", "server", "kernels")


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model with a tokenizer, as save_pretrained writes it."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    return save_tiny_model(folder, seed=1, **SMALL, num_hidden_layers=2, max_position_embeddings=64)


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cache of its own, and no log left that writes to this test's standard error."""
    monkeypatch.setenv("MOA_CACHE_DIR", str(tmp_path / "cache"))
    yield
    structlog.reset_defaults()


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
    return caught.value.code, capsys.readouterr().err


# ---------------------------------------------------------------- help


def test_help_names_every_setting() -> None:
    text = CliRunner().invoke(cli, ["serve", "--help"]).output
    for name in set(ServerSettings.model_fields) - {"model"}:
        assert f"--{name.replace('_', '-')} " in text
    assert "[default: 50051]" in re.sub(r"\s+", " ", text)


def test_config_says_what_is_in_force_and_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "moa.toml"
    file.write_text("[server]\nthreads = 3\n")
    monkeypatch.setenv("MOA_SERVER_PORT", "1002")
    lines = CliRunner().invoke(cli, ["config", "some/model", "--config", str(file)]).output.splitlines()
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in lines}
    assert rows["model"] == ["some/model", "command line MODEL"]
    assert rows["port"] == ["1002", "environment MOA_SERVER_PORT"]
    assert rows["threads"] == ["3", f"file {file}"]
    assert rows["host"] == ["127.0.0.1", "default"]
    assert rows["cache_dir"] == [str(tmp_path / "cache"), "environment MOA_CACHE_DIR"]


def test_help_needs_neither_torch_nor_grpc() -> None:
    code = "import sys, moa_server.cli; sys.exit(bool({'torch', 'grpc', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, timeout=60).returncode == 0


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--port", "99999"], "--port is '99999': input should be less than or equal to 65535."),
        (["--threads", "many"], "--threads is 'many'"),
        (
            ["--execution", "fp8"],
            "--execution is 'fp8': input should be 'auto', 'int8', 'float32' or 'bf16'.",
        ),
        (["--max-sessions", "0"], "--max-sessions is '0'"),
        (["--detached-seconds", "-1"], "--detached-seconds is '-1'"),
        (["--log-format", "xml"], "--log-format is 'xml'"),
        (["--colour", "red"], "No such option"),
    ],
)
def test_option_values_that_are_not_allowed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    code, err = fails(monkeypatch, capsys, "serve", *arguments)
    assert code == 2
    assert words in err


def test_flags_go_before_the_environment_and_that_before_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "moa.toml"
    file.write_text("[server]\nport = 1001\nthreads = 1\nmax_sessions = 4\n")
    monkeypatch.setenv("MOA_SERVER_PORT", "1002")
    monkeypatch.setenv("MOA_SERVER_THREADS", "2")
    seen: list[ServerSettings] = []
    monkeypatch.setattr("moa_server.cli.run", seen.append)
    result = CliRunner().invoke(cli, ["serve", "some/model", "--port", "1003", "--config", str(file)])
    assert result.exit_code == 0
    (settings,) = seen
    assert (settings.model, settings.port, settings.threads, settings.max_sessions) == ("some/model", 1003, 2, 4)


def test_unknown_settings(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "moa.toml"
    file.write_text("[server]\ncolour = 'red'\n")
    code, err = fails(monkeypatch, capsys, "serve", "--config", file)
    assert code == 2
    assert "colour in [server]" in err
    assert "Known settings: " in err
    code, err = fails(monkeypatch, capsys, "serve", "--config", tmp_path / "none.toml")
    assert code == 66
    assert "does not exist" in err
    monkeypatch.setenv("MOA_SERVER_COLOUR", "red")
    code, err = fails(monkeypatch, capsys, "serve")
    assert code == 2
    assert "MOA_SERVER_COLOUR is not a setting." in err


def test_a_model_that_is_not_there(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, err = fails(monkeypatch, capsys, "serve", "./nowhere/model.gguf")
    assert code == 66
    assert err.startswith("Error: ")
    assert "nowhere" in err


def test_a_context_that_the_target_does_not_hold(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model_folder: Path
) -> None:
    code, err = fails(monkeypatch, capsys, "serve", model_folder, "--context-length", 65)
    assert code == 2
    assert "The context length is 65, tiny holds 64 tokens." in err


def test_drafters_that_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model_folder: Path, tmp_path: Path
) -> None:
    code, err = fails(monkeypatch, capsys, "serve", model_folder, "--drafter", tmp_path / "none.safetensors")
    assert code == 66
    assert "There is no drafter checkpoint" in err
    code, err = fails(monkeypatch, capsys, "serve", model_folder, "--drafter", "deep")
    assert code == 66
    assert "No deep drafter comes with the package for tiny." in err

    path = make_drafter(tmp_path / "drafter.safetensors", target_fingerprint="ab" * 32)
    code, err = fails(monkeypatch, capsys, "serve", model_folder, "--drafter", path)
    assert code == 65
    assert "is for another target: its fingerprint is abab" in err

    make_drafter(path, target_layers=3)
    code, err = fails(monkeypatch, capsys, "serve", model_folder, "--drafter", path)
    assert code == 65
    assert "its number of layers is 3, tiny has 2" in err

    path.write_bytes(path.read_bytes()[:-100])
    code, err = fails(monkeypatch, capsys, "serve", model_folder, "--drafter", path)
    assert code == 65
    assert "corrupt or truncated" in err


@pytest.mark.parametrize("kind", ["Q8_0", "F32"])
@pytest.mark.parametrize("level", ["int8", "auto"])
def test_a_gguf_file_with_weights_that_are_no_numbers(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    write_gguf: GgufWriter,
    kind: str,
    level: str,
) -> None:
    if kind == "F32":
        path = write_gguf(poison=float("nan"))
    else:
        path = write_gguf()
        entry = read_header(path).tensors["blk.1.ffn_up.weight"]
        with path.open("r+b") as file:  # the scale of the first block
            file.seek(entry.offset)
            file.write(b"\x00\x7e")
    code, err = fails(monkeypatch, capsys, "serve", path, "--execution", level)
    assert code == 66
    last = err.splitlines()[-1]
    assert last.startswith("Error: The ")
    assert "blk.1.ffn_up.weight" in last or "model.layers.1.mlp.up_proj.weight" in last


def test_a_gguf_file_that_ends_too_early(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], write_gguf: GgufWriter
) -> None:
    path = write_gguf()
    path.write_bytes(path.read_bytes()[:-1000])
    code, err = fails(monkeypatch, capsys, "serve", path, "--execution", "int8")
    assert code == 66
    assert err.startswith("Error: ")


def test_kernels_that_this_machine_does_not_have(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model_folder: Path
) -> None:
    monkeypatch.setenv("MOA_KERNELS", "sse2")
    for level in ("int8", "auto"):
        code, err = fails(monkeypatch, capsys, "serve", model_folder, "--execution", level)
        assert code == 2
        assert "MOA_KERNELS=sse2 names no kernels" in err
        assert "--execution float32 or bf16" in err


def never(*_: object) -> NoReturn:
    raise AssertionError("the target was loaded")


def test_port_drafter_and_context_are_checked_before_the_target_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model_folder: Path, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with monkeypatch.context() as patch:
            patch.setattr("moa_server.loading.resolve", never)
            code, err = fails(patch, capsys, "serve", model_folder, "--port", port)
    assert code == 2
    assert err == (
        f"Error: Cannot listen on 127.0.0.1:{port}: it is in use, or no address of this machine. "
        "Choose another --host or --port (0: any free port).\n"
    )
    monkeypatch.setattr("moa_server.loading.load_execution", never)
    code, err = fails(monkeypatch, capsys, "serve", model_folder, "--port", 0, "--host", "203.0.113.1")
    assert "Cannot listen on 203.0.113.1:0" in err
    code, err = fails(monkeypatch, capsys, "serve", model_folder, "--port", 0, "--drafter", tmp_path / "none")
    assert (code, "There is no drafter checkpoint" in err) == (66, True)
    path = make_drafter(tmp_path / "drafter.safetensors", target_layers=3)
    code, err = fails(monkeypatch, capsys, "serve", model_folder, "--port", 0, "--drafter", path)
    assert (code, "its number of layers is 3, tiny has 2" in err) == (65, True)
    code, err = fails(monkeypatch, capsys, "serve", model_folder, "--port", 0, "--context-length", 65)
    assert (code, "tiny holds 64 tokens" in err) == (2, True)


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
    ("host", "shown"), [("127.0.0.1", "127.0.0.1:5"), ("::1", "[::1]:5"), ("0.0.0.0", f"{socket.gethostname()}:5")]
)
def test_it_says_how_to_connect(host: str, shown: str) -> None:
    assert connect_command(host, 5) == f"moa-client chat --server {shown}"


# ---------------------------------------------------------------- a server from start to end


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_serves_and_ends_cleanly(model_folder: Path, tmp_path: Path, number: signal.Signals) -> None:
    drafter, ready = make_drafter(tmp_path / "drafter.safetensors", reused_layers=1), tmp_path / "ready"
    command = [sys.executable, "-m", "moa_server.cli", "serve", str(model_folder), "--port", "0", "--threads", "1"]
    options = ["--drafter", str(drafter), "--ready-file", str(ready), "--log-format", "json", "--execution", "float32"]
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
            assert said.execution.level == "float32"
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
