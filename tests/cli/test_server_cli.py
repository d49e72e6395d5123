"""`moa-server` as a user meets it: help, refusals with their exit codes, a served model from start to SIGTERM."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import socket
import sys
from pathlib import Path
from typing import NoReturn

import gguf
import grpc
import pytest
from click.testing import CliRunner
from inline_snapshot import snapshot
from moa.v1 import moa_pb2 as pb
from moa.v1 import moa_pb2_grpc
from moa_server.cli import cli, main
from moa_server.commands.serve import run as run_server
from moa_server.running.addresses import connect_command
from moa_server.settings import ServerSettings
from moa_shared.drafter import load_checkpoint
from moa_shared.errors import ConfigError
from moa_shared.models.gguf.header import read_header
from moa_shared.programs.config import settings_of

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


# ---------------------------------------------------------------- help


def test_help_names_every_setting() -> None:
    text = CliRunner().invoke(cli, ["serve", "--help"]).output
    for name in set(settings_of(ServerSettings)) - {"model"}:
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


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--port", "99999"],
            snapshot("Error: --port is '99999': expected at most 65535. See --help for the values allowed."),
        ),
        (
            ["--threads", "many"],
            snapshot("Error: --threads is 'many': expected a whole number. See --help for the values allowed."),
        ),
        (
            ["--execution", "fp8"],
            snapshot(
                "Error: --execution is 'fp8': expected 'auto', 'int8', 'float32' or 'bf16'. See --help for the values allowed."
            ),
        ),
        (
            ["--max-streams", "0"],
            snapshot("Error: --max-streams is '0': expected at least 1. See --help for the values allowed."),
        ),
        (
            ["--detached-seconds", "-1"],
            snapshot("Error: --detached-seconds is '-1': expected at least 0. See --help for the values allowed."),
        ),
        (
            ["--log-format", "xml"],
            snapshot(
                "Error: --log-format is 'xml': expected 'auto', 'json' or 'plain'. See --help for the values allowed."
            ),
        ),
        (
            ["--colour", "red"],
            snapshot("Error: No such option '--colour'. Did you mean '--cores'?"),
        ),
    ],
)
def test_option_values_that_are_not_allowed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    code, err = fails(monkeypatch, capsys, "serve", *arguments)
    assert code == 2
    assert err.splitlines()[-1] == message


def test_flags_go_before_the_environment_and_that_before_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "moa.toml"
    file.write_text("[server]\nport = 1001\nthreads = 1\nmax_streams = 4\n")
    monkeypatch.setenv("MOA_SERVER_PORT", "1002")
    monkeypatch.setenv("MOA_SERVER_THREADS", "2")
    seen: list[ServerSettings] = []
    monkeypatch.setattr("moa_server.commands.serve.run", lambda settings, **_: seen.append(settings))
    result = CliRunner().invoke(cli, ["serve", "some/model", "--port", "1003", "--config", str(file)])
    assert result.exit_code == 0
    (settings,) = seen
    assert (settings.model, settings.port, settings.threads, settings.max_streams) == ("some/model", 1003, 2, 4)


def test_unknown_settings(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "moa.toml"
    file.write_text("[server]\ncolour = 'red'\n")
    code, err = fails(monkeypatch, capsys, "serve", "--config", file)
    assert (code, err) == snapshot(
        (
            2,
            "Error: colour in [server] of TMP/moa.toml is not a setting. See --help for the settings that there are.\n",
        )
    )
    code, err = fails(monkeypatch, capsys, "serve", "--config", tmp_path / "none.toml")
    assert (code, err) == snapshot(
        (66, "Error: The configuration file TMP/none.toml does not exist. Check the name.\n")
    )
    monkeypatch.setenv("MOA_SERVER_COLOUR", "red")
    code, err = fails(monkeypatch, capsys, "serve")
    assert (code, err) == snapshot(
        (
            2,
            "Error: MOA_SERVER_COLOUR is not a setting. See --help for the settings that there are.\n",
        )
    )


def test_a_model_that_is_not_there(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, err = fails(monkeypatch, capsys, "serve", "./nowhere/model.gguf")
    assert (code, err) == snapshot((66, "Error: There is no file CHECKOUT/nowhere/model.gguf. Check the name.\n"))


def test_a_context_that_the_target_does_not_hold(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model_folder: Path
) -> None:
    code, err = fails(monkeypatch, capsys, "serve", model_folder, "--context-length", 65)
    assert (code, err) == snapshot(
        (2, "Error: The context length is 65, tiny holds 64 tokens. Lower --context-length, or leave it out.\n")
    )


def test_drafters_that_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model_folder: Path, tmp_path: Path
) -> None:
    code, err = fails(monkeypatch, capsys, "serve", model_folder, "--drafter", tmp_path / "none.safetensors")
    assert (code, err) == snapshot(
        (66, "Error: There is no drafter checkpoint TMP/none.safetensors. Check the path given with --drafter.\n")
    )
    code, err = fails(monkeypatch, capsys, "serve", model_folder, "--drafter", "deep")
    assert (code, err) == snapshot(
        (
            66,
            "Error: No deep drafter comes with moa for tiny. Train one with moa-train fit, or leave --drafter out.\n",
        )
    )

    path = make_drafter(tmp_path / "drafter.safetensors", target_fingerprint="ab" * 32)
    code, err = fails(monkeypatch, capsys, "serve", model_folder, "--drafter", path)
    assert (code, err) == snapshot(
        (
            65,
            "Error: The drafter TMP/drafter.safetensors is for another target: its fingerprint is DIGEST, tiny has DIGEST. Give another --drafter, or --drafter none.\n",
        )
    )

    make_drafter(path, target_layers=3)
    code, err = fails(monkeypatch, capsys, "serve", model_folder, "--drafter", path)
    assert (code, err) == snapshot(
        (
            65,
            "Error: The drafter TMP/drafter.safetensors is for another target: its number of layers is 3, tiny has 2. Give another --drafter, or --drafter none.\n",
        )
    )

    path.write_bytes(path.read_bytes()[:-100])
    code, err = fails(monkeypatch, capsys, "serve", model_folder, "--drafter", path)
    assert (code, err) == snapshot(
        (
            65,
            "Error: The drafter checkpoint TMP/drafter.safetensors is corrupt or truncated (a tensor of shape [128] in the bytes 476928 to 477440 of 477340). Fetch or train the checkpoint again.\n",
        )
    )


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


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["Q8_0", "F32"])
@pytest.mark.parametrize("level", ["int8", "auto"])
def test_a_gguf_file_with_weights_that_are_no_numbers(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    kind: str,
    level: str,
) -> None:
    from tests.support.dense_families import tiny_dense
    from tests.support.dense_gguf import write_dense_gguf

    model, path = tiny_dense("llama"), tmp_path / "tiny.gguf"
    if kind == "F32":
        model.get_submodule("model.layers.1.mlp.up_proj").weight[0, 0] = float("nan")
        write_dense_gguf(model, path)
    else:
        write_dense_gguf(model, path, gguf.GGMLQuantizationType[kind])
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
    assert (code, err) == snapshot(
        (
            66,
            "Error: The GGUF file TMP/tiny.gguf cannot be read (blk.1.ffn_down.weight ends at byte 35040 of 34040). The file is truncated or corrupt: fetch it again.\n",
        )
    )


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
            exposed = fails(patch, capsys, "serve", model_folder, "--port", 0, "--host", "0.0.0.0")
            half = fails(patch, capsys, "serve", model_folder, "--port", 0, "--tls-cert", tmp_path / "none.pem")
            metrics = fails(patch, capsys, "serve", model_folder, "--port", 0, "--metrics-port", port)
    assert metrics == snapshot(
        (
            2,
            "Error: Cannot listen on 127.0.0.1:PORT for metrics: it is in use, or no address of this machine. Choose another --metrics-host or --metrics-port.\n",
        )
    )
    assert (exposed, half) == snapshot(
        (
            (
                2,
                "Error: On 0.0.0.0, conversations would cross the network without encryption. Give the server a certificate (moa-server setup makes one; --tls-cert FILE --tls-key FILE name one); or have it listen on this machine only (--host 127.0.0.1), behind a proxy or a tunnel; or accept with --insecure that others on the way read and change them.\n",
            ),
            (2, "Error: The certificate has no private key. Name it with --tls-key FILE.\n"),
        )
    )
    assert (code, err) == snapshot(
        (
            2,
            "Error: Cannot listen on 127.0.0.1:PORT: it is in use, or no address of this machine. Choose another --host or --port (0: any free port).\n",
        )
    )
    monkeypatch.setattr("moa_server.loading.load_execution", never)
    code, err = fails(monkeypatch, capsys, "serve", model_folder, "--port", 0, "--host", "203.0.113.1")
    assert (code, err) == snapshot(
        (
            2,
            "Error: Cannot listen on 203.0.113.1:0: it is in use, or no address of this machine. Choose another --host or --port (0: any free port).\n",
        )
    )
    code, err = fails(monkeypatch, capsys, "serve", model_folder, "--port", 0, "--drafter", tmp_path / "none")
    assert (code, err) == snapshot(
        (66, "Error: There is no drafter checkpoint TMP/none. Check the path given with --drafter.\n")
    )
    path = make_drafter(tmp_path / "drafter.safetensors", target_layers=3)
    code, err = fails(monkeypatch, capsys, "serve", model_folder, "--port", 0, "--drafter", path)
    assert (code, err) == snapshot(
        (
            65,
            "Error: The drafter TMP/drafter.safetensors is for another target: its number of layers is 3, tiny has 2. Give another --drafter, or --drafter none.\n",
        )
    )
    code, err = fails(monkeypatch, capsys, "serve", model_folder, "--port", 0, "--context-length", 65)
    assert (code, err) == snapshot(
        (2, "Error: The context length is 65, tiny holds 64 tokens. Lower --context-length, or leave it out.\n")
    )


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


def test_who_needs_a_key_is_told_how_to_show_it() -> None:
    assert connect_command("gpu.example", 5, tls=True, keys=True) == snapshot(
        "moa-client servers join NAME (with an invitation), or servers add NAME gpu.example:5 --tls --key-file FILE"
    )


# ---------------------------------------------------------------- a server from start to end


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
