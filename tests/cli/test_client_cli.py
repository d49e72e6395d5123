"""`moa-client` as a user meets it: help, answers on a pipe, a chat on a terminal, refusals with their exit codes."""

from __future__ import annotations

import fcntl
import http.server
import io
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pyte
import pytest
import torch
from click.testing import CliRunner
from moa.v1 import moa_pb2 as pb
from moa.v1 import moa_pb2_grpc
from moa_client.cli import chat, cli, main
from moa_client.settings import ClientSettings
from moa_shared.drafter import DrafterConfig, fresh_tensors, save_checkpoint
from moa_shared.models import load_tokenizer, resolve
from moa_shared.template import ChatTemplate
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

pytestmark = pytest.mark.xdist_group("client command line")
ROOTS = [str(Path(__file__).resolve().parents[2] / name) for name in ("proto", "shared", "server", "client")]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(ROOTS), "OMP_NUM_THREADS": "1", "TERM": "xterm"}
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' %}w7 {% elif m.role == 'user' %}w4 {% else %}w5 {% endif %}"
    "{{ m.content }} w2 {% endfor %}{% if add_generation_prompt %}w5 {% endif %}"
)
CONTEXT = 4096
PATIENCE = 40.0  # seconds until a program that says nothing is taken to hang
FIGURES = re.compile(r"\d+ tokens in [\d.]+ s, [\d.]+ tokens/s, first after \d+ ms, .* bytes up and \d+ down a token\n")


@dataclass(frozen=True)
class Served:
    model: Path
    drafter: Path
    address: str
    process: subprocess.Popen[bytes]


def make_model(folder: Path, seed: int) -> Path:
    """A tiny random model that never ends greedy text by itself, and a tokenizer of words with a chat template."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=97, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48,
        num_hidden_layers=2, max_position_embeddings=CONTEXT, eos_token_id=2,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(0.0, parameter.shape[-1] ** -0.5)
        model.lm_head.weight[2] = 0.0
    model.save_pretrained(folder)
    tokenizer = Tokenizer(WordLevel({f"w{index}": index for index in range(97)}, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="w2")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server process with a tiny model and a random drafter of it."""
    folder = tmp_path_factory.mktemp("client")
    model, drafter, ready, log = (
        make_model(folder / "tiny", 1),
        folder / "d.safetensors",
        folder / "ready",
        folder / "log",
    )
    config = drafter_config()
    save_checkpoint(drafter, config, fresh_tensors(config, seed=1))
    command = [sys.executable, "-m", "moa_server.cli", "serve", str(model), "--port", "0", "--threads", "1"]
    command += ["--dtype", "float32", "--drafter", str(drafter), "--ready-file", str(ready)]
    environment = ENVIRONMENT | {"MOA_CACHE_DIR": str(folder / "cache")}
    with log.open("wb") as out, subprocess.Popen(command, env=environment, stdout=out, stderr=out) as process:
        try:
            deadline = time.monotonic() + 2 * PATIENCE
            while not (ready.exists() and ready.read_text().strip()):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.05)
            yield Served(model, drafter, ready.read_text().strip(), process)
        finally:
            process.terminate()
            process.wait(PATIENCE)


def drafter_config(**changes: object) -> DrafterConfig:
    shapes = {
        "vocab_size": 97, "hidden_size": 32, "target_layers": 2, "target_heads": 4, "target_kv_heads": 2,
        "target_head_dim": 8, "sa_kv_heads": 2, "sa_mlp": 16, "ca_kv_heads": 2, "ca_mlp": 16, "lsa_heads": 4,
        "lsa_kv_heads": 2, "lsa_mlp": 16,
    }  # fmt: skip
    return DrafterConfig(**{**shapes, **changes})  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOA_CACHE_DIR", str(tmp_path / "cache"))
    for name in list(os.environ):
        if name.startswith("MOA_CLIENT_"):
            monkeypatch.delenv(name)


def options(served: Served, **more: object) -> list[str]:
    flags = {"server": served.address, "model": served.model, "drafter": served.drafter, "dtype": "float32"} | more
    return [word for name, value in flags.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def alone(served: Served, tokens: list[int], **sampling: object) -> list[int]:
    """What the server writes without a client's drafts."""
    with grpc.insecure_channel(served.address) as channel:
        request = pb.GenerateRequest(tokens=tokens, sampling=pb.Sampling(**sampling))  # type: ignore[arg-type]
        return [token for part in moa_pb2_grpc.MoaStub(channel).Generate(request) for token in part.tokens]


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the program in this process: exit code, standard output, standard error."""

    def run(*arguments: object, stdin: str | bytes = "") -> tuple[int, str, str]:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
        monkeypatch.setattr(sys, "argv", ["moa-client", *map(str, arguments)])
        with pytest.raises(SystemExit) as leaving:
            sys.exit(main())
        out, err = capsys.readouterr()
        return int(leaving.value.code or 0), out, err

    return run


# ---------------------------------------------------------------- help


def test_help_names_every_setting() -> None:
    text = CliRunner().invoke(cli, ["chat", "--help"]).output
    names = {parameter.name for parameter in chat.params} - {"prompt", "config"}
    assert names == set(ClientSettings.model_fields)
    for parameter in chat.params:
        if parameter.name != "prompt":
            assert f"{parameter.opts[0]} " in text


def test_help_needs_neither_torch_nor_grpc() -> None:
    code = "import sys, moa_client.cli; sys.exit(bool({'torch', 'grpc', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, timeout=60).returncode == 0


# ---------------------------------------------------------------- one answer


@pytest.mark.parametrize(
    "more", [{}, {"mode": "chain"}, {"drafter": "none"}, {"drafter": "random"}, {"drafter": "lookup"}]
)
def test_the_answer_alone_is_on_standard_output(served: Served, run: Run, more: dict[str, object]) -> None:
    code, out, err = run("chat", *options(served, **more, temperature=0.8, seed=3, max_tokens=12), "w10 w11")
    tokens = alone(served, [4, 10, 11, 2, 5], temperature=0.8, seed=3, max_tokens=12)
    assert (code, out) == (
        0,
        load_tokenizer(resolve(str(served.model))).decode(tokens, skip_special_tokens=True) + "\n",
    )
    assert FIGURES.search(err)


def test_a_prompt_can_be_piped_in_and_a_stop_string_ends_before_itself(served: Served, run: Run) -> None:
    words = [f"w{token}" for token in alone(served, [7, 9, 2, 4, 30, 2, 5], max_tokens=9)]
    stop = next(word for word in words if word != words[0])
    code, out, _ = run("chat", *options(served, system="w9", max_tokens=9, stop=stop), stdin="w30\n")
    assert code == 0
    assert out == " ".join(words).split(stop)[0] + "\n"
    assert out != "\n"


def test_an_answer_that_is_cut_says_so(served: Served, run: Run) -> None:
    _, _, err = run("chat", *options(served, max_tokens=3), "w10")
    assert err.startswith("(cut after 3 tokens: max_tokens)\n3 tokens in ")


def test_a_reader_that_has_enough_is_no_error(served: Served, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "moa_client.cli", "chat", *options(served, max_tokens=2000), "w10"]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(3)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(PATIENCE) == 0


def test_flags_go_before_the_environment_and_that_before_the_file(
    monkeypatch: pytest.MonkeyPatch, served: Served, run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "moa.toml"
    file.write_text("[client]\nmax_tokens = 2\ntemperature = 0.5\n")
    monkeypatch.setenv("MOA_CLIENT_TEMPERATURE", "0")
    assert "2 tokens in" in run("chat", *options(served, config=file), "w10")[2]
    monkeypatch.setenv("MOA_CLIENT_MAX_TOKENS", "4")
    assert "4 tokens in" in run("chat", *options(served, config=file), "w10")[2]
    assert "5 tokens in" in run("chat", *options(served, config=file, max_tokens=5), "w10")[2]


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--server", "localhost"], "--server is 'localhost': expected HOST:PORT, such as 127.0.0.1:50051."),
        (["--temperature", "-1"], "--temperature is -1.0: input should be greater than or equal to 0."),
        (["--mode", "bush"], "--mode is 'bush': input should be 'chain' or 'tree'."),
        (["--top-p", "0"], "--top-p is 0.0"),
        (["--seed", "-5"], "--seed is -5"),
        (["--colour", "red"], "No such option"),
    ],
)
def test_option_values_that_are_not_allowed(run: Run, arguments: list[str], words: str) -> None:
    code, out, err = run("chat", *arguments, "w10")
    assert (code, out) == (2, "")
    assert words in err


def test_prompts_that_cannot_be_asked(served: Served, run: Run) -> None:
    code, _, err = run("chat", stdin=" \n")
    assert (code, err) == (
        2,
        "Error: The prompt is empty. Give a prompt as an argument or on standard input.\n",
    )
    code, _, err = run("chat", stdin=b"caf\xe9")
    assert code == 65
    assert err.startswith("Error: The prompt is not text in UTF-8.")
    code, out, err = run("chat", *options(served), "w10 " * CONTEXT)
    assert (code, out.strip()) == (65, "")
    assert f"the context holds {CONTEXT}" in err
    assert "Shorten the prompt" in err


class Silent(http.server.BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


def test_a_server_that_is_not_there_or_is_another_one(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    code, _, err = run("chat", "--server", f"127.0.0.1:{port}", "hello")
    assert (code, err) == (
        69,
        f"Error: There is no moa server at 127.0.0.1:{port}: the connection was refused. "
        "Check --server HOST:PORT, and that moa-server runs there.\n",
    )
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Silent) as web:
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        code, _, err = run("chat", "--server", f"127.0.0.1:{web.server_port}", "hello")
        web.shutdown()
        thread.join()
    assert code == 69
    assert "what listens there does not speak gRPC" in err
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        code, _, err = run("chat", "--server", f"127.0.0.1:{port}", "--connect-seconds", "0.3", "hello")
    assert code == 69
    assert f"There is no moa server at 127.0.0.1:{port}: " in err


def test_models_and_drafters_that_do_not_fit(served: Served, run: Run, tmp_path: Path) -> None:
    code, _, err = run("chat", *options(served, model=make_model(tmp_path / "other", 2)), "w10")
    assert code == 78
    assert "The target model does not match: the server has tiny (" in err
    code, _, err = run("chat", *options(served, model="./nowhere"), "w10")
    assert code == 66
    assert "nowhere" in err
    code, _, err = run("chat", *options(served, drafter=tmp_path / "none.safetensors"), "w10")
    assert code == 66
    assert "There is no drafter checkpoint" in err
    path, config = tmp_path / "d.safetensors", drafter_config()
    save_checkpoint(path, config, fresh_tensors(config, seed=2))
    code, _, err = run("chat", *options(served, drafter=path), "w10")
    assert code == 78
    assert "The drafter does not match" in err
    path.write_bytes(path.read_bytes()[:-100])
    code, _, err = run("chat", *options(served, drafter=path), "w10")
    assert code == 65
    assert "corrupt or truncated" in err
    code, _, err = run("chat", *options(served, nodes=200), "w10")
    assert (code, err) == (
        2,
        "Error: --nodes is 200, the server verifies at most 64 draft tokens at once. Give --nodes 64 or less.\n",
    )


# ---------------------------------------------------------------- a chat on a terminal


class Screen(pyte.HistoryScreen):
    """An emulated terminal that answers where its cursor is; pyte knows no dim: it blinks instead."""

    answer: Callable[[str], None]

    def select_graphic_rendition(self, *attributes: int, private: bool = False) -> None:
        super().select_graphic_rendition(*(5 if attribute == 2 else attribute for attribute in attributes))

    def write_process_input(self, data: str) -> None:
        self.answer(data)


class Terminal:
    """A program on a pseudo-terminal, and what it shows there."""

    def __init__(self, command: list[str], environment: dict[str, str] = ENVIRONMENT) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self.process = subprocess.Popen(
            command, env=environment, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        os.close(slave)
        self.screen = Screen(120, 40, history=100_000)
        self.screen.answer = self.type
        self.raw = b""
        self._stream = pyte.ByteStream(self.screen)
        self._seen = 0

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def at_prompt(self, text: str) -> None:
        """Types when the program asks: what comes before is still the terminal's, which would make Enter of Return."""
        self.wait_for(r"\n> ?\n")
        self.type(text)

    @property
    def text(self) -> str:
        """All lines, those that have scrolled out too; the last one without the blanks after it."""
        lines = [*self.screen.history.top, *(self.screen.buffer[row] for row in range(self.screen.lines))]
        shown = ["".join(line[at].data for at in range(self.screen.columns)).rstrip() for line in lines]
        return "\n" + "\n".join(shown)

    @property
    def dim(self) -> str:
        """The provisional text on the screen."""
        rows = [self.screen.buffer[row] for row in range(self.screen.lines)]
        return "".join(row[at].data for row in rows for at in range(self.screen.columns) if row[at].blink)

    def wait_for(self, pattern: str) -> str:
        """Reads on until the screen shows the pattern below what was waited for before; that part of it."""
        return self.wait_until(lambda: re.compile(pattern, re.DOTALL).search(self.text, self._seen), pattern)

    def wait_until(self, found: Callable[[], re.Match[str] | None], what: str = "") -> str:
        deadline = time.monotonic() + PATIENCE
        while (match := found()) is None:
            ready, _, _ = select.select([self.master], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"waited for {what!r} after {self.text[self._seen :].rstrip()!r}"
            data = os.read(self.master, 65536)
            self.raw += data
            self._stream.feed(data)
        part = self.text[self._seen : match.end()]
        self._seen = match.end() - match[0].endswith("\n")
        return part

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)


@pytest.fixture
def terminal(served: Served) -> Iterator[Terminal]:
    program = Terminal([sys.executable, "-m", "moa_client.cli", "chat", *options(served, max_tokens=6)])
    try:
        program.wait_for(f"Talking to tiny at {served.address}")
        yield program
    finally:
        program.close()


def test_a_chat(served: Served, terminal: Terminal) -> None:
    template = ChatTemplate(load_tokenizer(resolve(str(served.model))))

    def words(tokens: list[int]) -> str:
        return " ".join(f"w{token}" for token in tokens)

    first = template.first_turn("w10")
    answer = alone(served, first, max_tokens=6)
    terminal.at_prompt("w10\r")
    terminal.wait_for(words(answer))
    terminal.wait_for("cut after 6 tokens")
    committed = [*first, *answer]
    committed += template.next_turn("w11\nw12", committed)
    terminal.at_prompt("w11\x1b\rw12\r")  # Alt-Enter
    terminal.wait_for(words(alone(served, committed, max_tokens=6)))
    terminal.at_prompt("/stats\r")
    terminal.wait_for("6 tokens in")
    terminal.at_prompt("/\r")
    terminal.wait_for("There is no command /.")
    terminal.at_prompt("/set max_tokens many\r")
    terminal.wait_for("--max-tokens is 'many'")
    terminal.at_prompt("/set max_tokens 4000\r")
    terminal.wait_for("max_tokens is 4000 now")
    terminal.at_prompt("/reset\r")
    terminal.wait_for("A new conversation begins")
    terminal.at_prompt("w10\r")
    terminal.wait_for(words(answer))  # the answer runs, and goes on for long
    terminal.process.send_signal(signal.SIGINT)
    terminal.wait_for(r"\(stopped\)")
    terminal.at_prompt("/set max_tokens 6\r")
    terminal.wait_for("max_tokens is 6 now")
    terminal.at_prompt("/reset\r")
    terminal.wait_for("A new conversation begins")
    terminal.at_prompt("w10\r")
    terminal.wait_for(words(answer))
    terminal.at_prompt("/bye\r")
    assert terminal.process.wait(PATIENCE) == 0


def test_ctrl_c_at_the_prompt_forgets_the_line_and_ctrl_d_leaves(terminal: Terminal) -> None:
    terminal.at_prompt("w10\\\r")
    terminal.wait_for(r"\.\.\.")
    terminal.type("\x03")
    terminal.wait_for(">")
    terminal.type("\x04")
    assert terminal.process.wait(PATIENCE) == 0


def test_ctrl_c_in_a_single_answer_ends_the_program(served: Served) -> None:
    command = [sys.executable, "-m", "moa_client.cli", "chat", *options(served, max_tokens=4000), "w10"]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(10)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, err.decode()
    assert "Error: The answer was stopped." in err.decode()
