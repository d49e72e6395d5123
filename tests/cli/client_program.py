"""A tiny served model, and the client program on a terminal, for tests of the command line."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pyte
import torch
from moa.v1 import moa_pb2 as pb
from moa.v1 import moa_pb2_grpc
from moa_shared.drafter import DrafterConfig, fresh_tensors, save_checkpoint
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

ROOTS = [str(Path(__file__).resolve().parents[2] / name) for name in ("proto", "shared", "server", "client", "kernels")]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(ROOTS), "OMP_NUM_THREADS": "1", "TERM": "xterm"}
ENVIRONMENT |= {"MOA_CLIENT_LOG_FILE": os.devnull}
ENVIRONMENT |= {"COLUMNS": "80", "LINES": "24"}  # of another terminal, as a shell may leave them
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' %}w7 {% elif m.role == 'user' %}w4 {% else %}w5 {% endif %}"
    "{{ m.content }} w2 {% endfor %}{% if add_generation_prompt %}w5 {% endif %}"
)
CONTEXT = 4096
Run = Callable[..., tuple[int, str, str]]  # exit code, standard output, standard error
CHAT = [sys.executable, "-m", "moa_client.cli", "chat"]
PATIENCE = 40.0  # seconds until a program that says nothing is taken to hang


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


def drafter_config(**changes: object) -> DrafterConfig:
    shapes = {
        "vocab_size": 97, "hidden_size": 32, "target_layers": 2, "target_heads": 4, "target_kv_heads": 2,
        "target_head_dim": 8, "sa_kv_heads": 2, "sa_mlp": 16, "ca_kv_heads": 2, "ca_mlp": 16, "lsa_heads": 4,
        "lsa_kv_heads": 2, "lsa_mlp": 16,
    }  # fmt: skip
    return DrafterConfig(**{**shapes, **changes})  # type: ignore[arg-type]


def make_drafter(path: Path) -> Path:
    """A random one of the tiny model."""
    config = drafter_config()
    save_checkpoint(path, config, fresh_tensors(config, seed=1))
    return path


@contextmanager
def serving(folder: Path, model: Path, drafter: Path, port: int = 0) -> Iterator[Served]:
    """A server process; killed at the end if need be."""
    ready, log = folder / "ready", folder / "log"
    ready.unlink(missing_ok=True)
    command = [sys.executable, "-m", "moa_server.cli", "serve", str(model), "--port", str(port), "--threads", "1"]
    command += ["--execution", "float32", "--drafter", str(drafter), "--ready-file", str(ready)]
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


def words(tokens: list[int]) -> str:
    """The tiny model's text."""
    return " ".join(f"w{token}" for token in tokens)


def options(served: Served, **more: object) -> list[str]:
    flags = {"server": served.address, "model": served.model, "drafter": served.drafter, "dtype": "float32"} | more
    return [word for name, value in flags.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def alone(served: Served, tokens: list[int], **sampling: object) -> list[int]:
    """What the server writes without a client's drafts."""
    with grpc.insecure_channel(served.address) as channel:
        request = pb.GenerateRequest(tokens=tokens, sampling=pb.Sampling(**sampling))  # type: ignore[arg-type]
        return [token for part in moa_pb2_grpc.MoaStub(channel).Generate(request) for token in part.tokens]


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
