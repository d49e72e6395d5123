"""A server with a drafter, and what a device holds for it: the stage of most measurements."""

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from moa_client.device.loading import Device
from moa_shared.drafter.checkpoint.shipped import DEFAULT_DRAFTER
from moa_shared.models import ModelFiles, load_tokenizer, resolve
from moa_shared.models.tokenizer.tokenizer import Tokenizer
from moa_shared.programs.progress import make_progress
from moa_shared.programs.run_loop import make_runner

from moa_bench.harness.child import Child, running_server
from moa_bench.harness.cores import on_cores
from moa_bench.harness.drafters import BenchDrafter, drafter_file, find_drafter
from moa_bench.harness.split_client import client_settings, load_split_device


@dataclass(frozen=True, slots=True)
class Stage:
    """A server, and what its clients share."""

    runner: asyncio.Runner
    files: ModelFiles
    tokenizer: Tokenizer
    drafter: BenchDrafter  # whose memory it serves
    path: str  # of its file
    server: Child
    device: Device  # of a client with that drafter

    @property
    def address(self) -> str:
        return self.server.address

    @property
    def vocab_size(self) -> int:
        return int(self.files.config["vocab_size"])


@contextmanager
def staged(
    model: str, level: str, server_cores: set[int] | None, own_cores: set[int] | None, named: str = DEFAULT_DRAFTER
) -> Iterator[Stage]:
    """A server with a drafter, as `find_drafter` takes its name; the block has the other core."""
    files = resolve(model, progress=make_progress())
    drafter = find_drafter(files, named)
    with on_cores(own_cores), make_runner() as runner, tempfile.TemporaryDirectory(prefix="moa-bench-") as folder:
        path = str(drafter_file(drafter, Path(folder)))
        with running_server(model, level=level, drafter=path, cores=server_cores) as server:
            program = client_settings(server=server.address, model=model, drafter=path)
            device = load_split_device(runner, program)
            yield Stage(runner, files, load_tokenizer(files), drafter, path, server, device)
