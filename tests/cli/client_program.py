"""A tiny served model, and the client program on a terminal, for tests of the command line."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from moa.v1 import moa_pb2 as pb
from moa.v1 import moa_pb2_grpc
from moa_bench.harness.child import running

from tests.support.programs import environment
from tests.support.tiny_models import END, save_drafter, save_tokenizer, small_drafter, tiny_model

# COLUMNS and LINES are of another terminal, as a shell may leave them.
ENVIRONMENT = environment("proto", "shared", "server", "client", "kernels", TERM="xterm", COLUMNS="80", LINES="24")
ENVIRONMENT |= {"XDG_STATE_HOME": os.devnull, "MOA_CLIENT_DAEMON": "false", "MOA_CLIENT_HISTORY": "false"}
ENVIRONMENT |= {"MOA_CLIENT_TEMPERATURE": "0", "MOA_CLIENT_TOP_P": "1"}  # as the target's own text is chosen
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' %}w7 {% elif m.role == 'user' %}w4 {% else %}w5 {% endif %}"
    "{{ m.content }} w2 {% endfor %}{% if add_generation_prompt %}w5 {% endif %}"
)
CONTEXT = 4096
SIZES: dict[str, Any] = {"num_hidden_layers": 2, "max_position_embeddings": CONTEXT}
Run = Callable[..., tuple[int, str, str]]  # exit code, standard output, standard error
CHAT = [sys.executable, "-m", "moa_client.cli", "chat"]


@dataclass(frozen=True)
class Served:
    model: Path
    drafter: Path
    address: str
    process: subprocess.Popen[bytes]


def make_model(folder: Path, seed: int) -> Path:
    """A tiny random model that never ends greedy text by itself, and a tokenizer of words with a chat template."""
    model = tiny_model(seed=seed, **SIZES, eos_token_id=END)
    model.tensors["lm_head.weight"][END] = 0.0
    model.save(folder)
    save_tokenizer(folder, template=TEMPLATE)
    return folder


def make_drafter(path: Path, seed: int = 1) -> Path:
    """A random one of the tiny model."""
    return save_drafter(path, small_drafter(target_layers=SIZES["num_hidden_layers"]), seed)


@contextmanager
def serving(folder: Path, model: Path, drafter: Path, port: int = 0) -> Iterator[Served]:
    """A server process; ended with the block if need be."""
    arguments = ["--port", str(port), "--threads", "1", "--drafter", str(drafter)]
    with running("moa_server.cli", ["serve", str(model), *arguments, "--cache-dir", str(folder / "cache")]) as server:
        yield Served(model, drafter, server.address, server.process)


def words(tokens: list[int]) -> str:
    """The tiny model's text."""
    return " ".join(f"w{token}" for token in tokens)


def options(served: Served, **more: object) -> list[str]:
    flags = {"server": served.address, "model": served.model, "drafter": served.drafter} | more
    return [word for name, value in flags.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def alone(served: Served, tokens: list[int], **sampling: object) -> list[int]:
    """What the server writes without a client's drafts."""
    with grpc.insecure_channel(served.address) as channel:
        request = pb.GenerateRequest(tokens=tokens, sampling=pb.Sampling(**sampling))  # type: ignore[arg-type]
        return [token for part in moa_pb2_grpc.MoaStub(channel).Generate(request) for token in part.tokens]
