"""The stage of most measurements: a target, a server with a drafter, and what a device holds for it.

The drafter is the shipped one, or an untrained one of its size where none is shipped. What a step costs does not depend
on training; what is accepted does, so results always say which of the two it was.
"""

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from moa_client.device.loading import Device
from moa_client.settings import ClientSettings
from moa_shared.drafter.checkpoint import (
    DEEP_DRAFTER,
    DEFAULT_DRAFTER,
    Checkpoint,
    require_shipped,
    shipped_drafter,
)
from moa_shared.models import ModelFiles, load_tokenizer, resolve
from moa_shared.models.tokenizer import Tokenizer
from moa_shared.programs.progress import Progress, make_progress
from moa_shared.programs.run_loop import make_runner

from moa_bench.harness.child import Child, running_server
from moa_bench.harness.split_client import load_split_device
from moa_bench.machine import on_cores

if TYPE_CHECKING:
    from moa_server.verifier.execution_level import Execution

SHIPPED, NAMED, UNTRAINED = "shipped", "named by path", "untrained"
UNTRAINED_VOCAB = 16_384  # covers 97 % of the default target's greedy tokens; the full head is half of a draft step


@dataclass(frozen=True, slots=True)
class BenchDrafter:
    checkpoint: Checkpoint
    origin: str  # SHIPPED, NAMED or UNTRAINED
    path: Path | None = None  # of its file; None: it has none

    @property
    def description(self) -> str:
        """For tables: "shipped, N = 3, 16384 draft tokens"."""
        own = self.checkpoint.config
        method = own.traits.method(own).removeprefix("MoA, ")
        return f"{self.origin}, {method}, {own.draft_vocab or own.vocab_size} draft tokens"

    def file(self, folder: Path) -> str:
        """Its file, which a server can load: its own, or one written into `folder`."""
        from moa_shared.drafter.checkpoint import save_checkpoint

        if self.path is not None:
            return str(self.path)
        save_checkpoint(folder / "untrained.safetensors", self.checkpoint.config, self.checkpoint.tensors)
        return str(folder / "untrained.safetensors")


def find_drafter(files: ModelFiles, name: str = DEFAULT_DRAFTER) -> BenchDrafter:
    """A drafter for this target: "default", which comes with moa or is untrained; "deep"; or one by path or id."""
    from moa_shared.drafter.checkpoint import load_checkpoint
    from moa_shared.drafter.published import find_drafter as find_published

    origin, path = SHIPPED, shipped_drafter(files.fingerprint)
    if name == DEEP_DRAFTER:
        path = require_shipped(files.fingerprint, files.target_id, name, hint="Leave --drafter out.")
    elif name != DEFAULT_DRAFTER:
        origin, path = NAMED, find_published(name, files)
    return untrained_drafter(files) if path is None else BenchDrafter(load_checkpoint(path), origin, path)


def untrained_drafter(files: ModelFiles) -> BenchDrafter:
    """Random tensors, with a head of few tokens: almost never right."""
    from moa_shared.drafter.checkpoint import fresh_tensors
    from moa_shared.drafter.kinds import DrafterConfig
    from moa_shared.drafter.kinds.layout import target_sizes
    from moa_shared.models.network.plan import kv_width

    sizes = target_sizes(files.config)
    heads, hidden, dim = sizes["target_kv_heads"], sizes["hidden_size"], sizes["target_head_dim"]
    own = {"sa_kv_heads": heads, "sa_mlp": hidden, "ca_kv_heads": heads, "ca_mlp": hidden}
    own |= {"lsa_heads": heads, "lsa_kv_heads": heads, "lsa_mlp": dim, "target_fingerprint": files.fingerprint}
    few, width = min(UNTRAINED_VOCAB, sizes["vocab_size"]), kv_width(files.config)
    config = DrafterConfig(**sizes, **own, target_kv_width=width, draft_vocab=few)
    return BenchDrafter(Checkpoint(config, fresh_tensors(config, seed=0), ""), UNTRAINED)


@dataclass(frozen=True, slots=True)
class Stage:
    runner: asyncio.Runner
    files: ModelFiles
    tokenizer: Tokenizer
    drafter: BenchDrafter  # whose memory it serves
    server: Child
    device: Device  # of a client with that drafter

    @property
    def vocab_size(self) -> int:
        return int(self.files.config["vocab_size"])


@contextmanager
def staged(model: str, level: str, server_cores: set[int] | None, own_cores: set[int] | None) -> Iterator[Stage]:
    """A server with a drafter; the block has the other core."""
    files = resolve(model, progress=make_progress())
    drafter = find_drafter(files)
    with on_cores(own_cores), make_runner() as runner, tempfile.TemporaryDirectory(prefix="moa-bench-") as folder:
        path = drafter.file(Path(folder))
        with running_server(model, level=level, drafter=path, cores=server_cores) as server:
            program = ClientSettings(server=server.address, model=model, drafter=path)
            device = load_split_device(runner, program)
            yield Stage(runner, files, load_tokenizer(files), drafter, server, device)


def load_level(files: ModelFiles, level: str, progress: Progress) -> "Execution":
    """The target as the server loads it on this level, with one thread; at int8 on the variant in use."""
    from moa_server.settings import SECTION, ServerSettings
    from moa_server.verifier.execution_level import load_execution
    from moa_shared.programs.config import load_settings

    fields = {"execution": level, "threads": 1}
    return load_execution(files, load_settings(ServerSettings, SECTION, fields, environment={}), progress)
