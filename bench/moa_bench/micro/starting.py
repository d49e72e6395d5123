"""How long programs take from the shell to their first use: command lines, and a server that can be called."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass

from moa_shared.errors import UnavailableError

from moa_bench.child import child_environment
from moa_bench.cores import on_cores
from moa_bench.servers import running_server
from moa_bench.spread import Spread

HELP_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class StartCost:
    """From the start of a process until `until`."""

    program: str
    until: str
    ms: Spread


def measure_starts(model: str, starts: int, server_cores: set[int] | None) -> list[StartCost]:
    """Everything is in the disk's cache and the model is converted.

    Raises:
        UnavailableError: a program fails.
    """
    ready_ms = []
    for _ in range(starts):
        with running_server(model, cores=server_cores) as server:
            ready_ms.append(server.start_ms)
    costs = [StartCost("moa-server serve", "it can be called", Spread.of(ready_ms))]
    for module, program in (("moa_server.cli", "moa-server"), ("moa_client.cli", "moa-client")):
        shown = [_help_ms(module, server_cores) for _ in range(starts)]
        costs.append(StartCost(f"{program} --help", "it has ended", Spread.of(shown)))
    return costs


def _help_ms(module: str, cores: set[int] | None) -> float:
    began = time.perf_counter()
    with on_cores(cores):
        done = subprocess.run(
            [sys.executable, "-m", module, "--help"],
            capture_output=True,
            env=child_environment(),
            timeout=HELP_TIMEOUT_S,
        )
    if done.returncode != 0:
        raise UnavailableError(f"{module} --help ended with status {done.returncode}: {done.stderr.decode()[-500:]}")
    return (time.perf_counter() - began) * 1e3
