"""How long programs take from the shell to their first use: command lines, a server that can be called, an answer."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from moa_shared.errors import UnavailableError

from moa_bench.child import child_environment
from moa_bench.cores import on_cores
from moa_bench.servers import running_server
from moa_bench.spread import Spread

RUN_TIMEOUT_S = 120.0  # far above any of these programs, also on a machine under load


@dataclass(frozen=True, slots=True)
class StartCost:
    """From the start of a process until `until`."""

    program: str
    until: str
    ms: Spread


def measure_starts(
    model: str, level: str, drafter: str, starts: int, server_cores: set[int] | None, client_cores: set[int] | None
) -> list[StartCost]:
    """Everything is in the disk's cache and the model is fetched.

    Args:
        drafter: file of the drafter that both ends load.

    Raises:
        UnavailableError: a program fails.
    """
    ready_ms, answer_ms = [], []
    for _ in range(starts):
        with running_server(model, level=level, drafter=drafter, cores=server_cores) as server:
            ready_ms.append(server.start_ms)
            chat = [
                "moa_client.cli", "chat", "--server", server.address, "--model", model, "--drafter", drafter,
                "--threads", "1", "--max-tokens", "1", "Hi.",
            ]  # fmt: skip
            answer_ms.append(_run_ms(chat, client_cores))
    helps = {
        program: [_run_ms([f"{program.replace('-', '_')}.cli", "--help"], client_cores) for _ in range(starts)]
        for program in ("moa-server", "moa-client")
    }
    return [
        StartCost("moa-server serve", "it can be called", Spread.of(ready_ms)),
        StartCost("moa-client chat PROMPT", "it has ended after one token", Spread.of(answer_ms)),
        *(StartCost(f"{program} --help", "it has ended", Spread.of(taken)) for program, taken in helps.items()),
    ]


def _run_ms(module_and_arguments: Sequence[str], cores: set[int] | None) -> float:
    began = time.perf_counter()
    with on_cores(cores):
        done = subprocess.run(
            [sys.executable, "-P", "-m", *module_and_arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=child_environment(),
            timeout=RUN_TIMEOUT_S,
        )
    if done.returncode != 0:
        error = done.stderr.decode("utf-8", "replace")[-500:].strip()
        raise UnavailableError(f"{' '.join(module_and_arguments)} ended with status {done.returncode}: {error}")
    return (time.perf_counter() - began) * 1e3
