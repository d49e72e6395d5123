"""How long programs take from the shell to their first use, and how much memory: command lines, a server, an answer."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass

from moa_shared.errors import UnavailableError

from moa_bench.harness.child import child_environment
from moa_bench.harness.cores import on_cores
from moa_bench.harness.servers import running_server
from moa_bench.report.memory import MemoryKind, memory_mb
from moa_bench.report.spread import Spread

RUN_TIMEOUT_S = 120.0  # far above any of these programs, also on a machine under load
POLL_S = 0.01  # between looks at a program's memory


@dataclass(frozen=True, slots=True)
class StartCost:
    """What a program takes from the start of its process until `until`.

    Args:
        peak_mb: the most memory that lay in RAM by then; None: the system does not say.
    """

    program: str
    until: str
    ms: Spread
    peak_mb: Spread | None


def measure_starts(
    model: str, level: str, drafter: str, starts: int, server_cores: set[int] | None, client_cores: set[int] | None
) -> list[StartCost]:
    """Measures starts while everything is in the disk's cache and the model is fetched.

    Args:
        drafter: file of the drafter that both ends load.

    Raises:
        UnavailableError: a program fails.
    """
    ready: list[_Run] = []
    answers: list[_Run] = []
    for _ in range(starts):
        with running_server(model, level=level, drafter=drafter, cores=server_cores) as server:
            ready.append(_Run(server.start_ms, memory_mb(server.process.pid, MemoryKind.PEAK)))
            chat = [
                "moa_client.cli", "chat", "--server", server.address, "--model", model, "--drafter", drafter,
                "--threads", "1", "--temperature", "0", "--max-tokens", "1", "Hi.",
            ]  # fmt: skip
            answers.append(_run(chat, client_cores))
    helps = {
        program: [_run([f"{program.replace('-', '_')}.cli", "--help"], client_cores) for _ in range(starts)]
        for program in ("moa-server", "moa-client")
    }
    return [
        _cost("moa-server serve", "it can be called", ready),
        _cost("moa-client chat PROMPT", "it has ended after one token", answers),
        *(_cost(f"{program} --help", "it has ended", runs) for program, runs in helps.items()),
    ]


@dataclass(frozen=True, slots=True)
class _Run:
    ms: float
    peak_mb: float | None


def _cost(program: str, until: str, runs: Sequence[_Run]) -> StartCost:
    peaks = [run.peak_mb for run in runs if run.peak_mb is not None]
    return StartCost(program, until, Spread.of([run.ms for run in runs]), Spread.of(peaks) if peaks else None)


def _run(module_and_arguments: Sequence[str], cores: set[int] | None) -> _Run:
    """A program of ours from its start to its end."""
    began = time.perf_counter()
    peak: float | None = None
    with tempfile.TemporaryFile() as output:
        with on_cores(cores):
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", *module_and_arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=child_environment(),
            )
        # What the system says at the end of a child counts this process too, from which it was forked.
        while process.poll() is None:
            peak = memory_mb(process.pid, MemoryKind.PEAK) or peak
            if time.perf_counter() - began > RUN_TIMEOUT_S:
                process.kill()
            time.sleep(POLL_S)
        taken_ms = (time.perf_counter() - began) * 1e3
        if process.returncode != 0:
            output.seek(0)
            said = output.read()[-500:].decode("utf-8", "replace").strip()
            ended = f"{' '.join(module_and_arguments)} ended with status {process.returncode}"
            raise UnavailableError(f"{ended}: {said}", hint="Start it by hand to see why.")
    return _Run(taken_ms, peak)
