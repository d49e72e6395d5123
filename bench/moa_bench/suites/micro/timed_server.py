"""`python -m moa_bench.suites.micro.timed_server --times FILE serve ...`: a server that notes when its forwards ran.

The notes are in memory until the server ends, so that they cost a microsecond each. Times are seconds on the clock of
`time.perf_counter`, which all processes of a machine share.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from moa_server.commands.serve import run
from moa_server.engine.engine import Engine
from moa_server.settings import SECTION, ServerSettings
from moa_server.target import Request, Target, TargetOutput
from moa_server.target.execution_level import Execution, load_execution
from moa_shared.errors import MoaError
from moa_shared.programs.command_line import settings_options
from moa_shared.programs.config import load_settings

from moa_bench.harness.wrapped_target import WrappedTarget

if TYPE_CHECKING:
    from moa_server.target.target import Rows
    from moa_shared.drafter import Checkpoint
    from moa_shared.models import ModelFiles
    from moa_shared.programs.progress import Progress


@dataclass(frozen=True, slots=True)
class TimedForward:
    """One forward.

    Args:
        began_s: when.
        cpu_s: time that the inference thread computed in it, whatever else ran on its core meanwhile.
        process_cpu_s: CPU time of the whole server up to its beginning; `encoder_cpu_s`: of it, what the drafter's
            memory encoder computed.
        serial_cpu_s: CPU time up to its beginning of the inference thread, and of the loop while the thread waits for
            it: it takes in what a forward gave and plans the next one. No other core can take this over.
        sessions: that took part; `rows`: of all of them.
    """

    began_s: float
    cpu_s: float
    process_cpu_s: float
    encoder_cpu_s: float
    serial_cpu_s: float
    sessions: int
    rows: int


class Planning:
    """The loop's CPU time between two forwards of an engine: all engines of this process, from now on."""

    def __init__(self) -> None:
        self.cpu_s = 0.0
        commit = Engine._commit

        def timed(engine: Engine, *arguments: Any) -> None:
            began = time.thread_time()
            commit(engine, *arguments)
            self.cpu_s += time.thread_time() - began

        Engine._commit = timed  # type: ignore[method-assign,assignment]


class TimedTarget(WrappedTarget):
    """A target that notes its forwards."""

    def __init__(self, inner: Target, planning: Planning) -> None:
        super().__init__(inner)
        self._planning = planning
        self.forwards: list[TimedForward] = []
        self._encoder_cpu_s = 0.0

    def memory_rows(self, drafter: Checkpoint) -> Callable[[Rows], Rows]:
        encode = super().memory_rows(drafter)

        def timed(read: Rows) -> Rows:
            cpu = time.thread_time()
            rows = encode(read)
            self._encoder_cpu_s += time.thread_time() - cpu
            return rows

        return timed

    def _run(self, requests: Sequence[Request], depths: Sequence[Sequence[int]]) -> list[TargetOutput]:
        began, process_cpu, cpu = time.perf_counter(), time.process_time(), time.thread_time()
        outputs = super()._run(requests, depths)
        took = time.thread_time() - cpu
        self.forwards.append(
            TimedForward(
                began,
                took,
                process_cpu,
                self._encoder_cpu_s,
                cpu + self._planning.cpu_s,
                len(requests),
                sum(len(request.tokens) for request in requests),
            )
        )
        return outputs


def read_forwards(times: Path) -> list[TimedForward]:
    """What a server that has ended wrote to its file."""
    return [TimedForward(*each) for each in json.loads(times.read_text("utf-8"))]


@click.group()
@click.option("--times", type=click.Path(path_type=Path), required=True)
@click.pass_context
def cli(context: click.Context, times: Path) -> None:
    """A server for `moa-bench`, not for use."""
    context.obj = times


@cli.command()
@settings_options(ServerSettings, SECTION)
@click.pass_obj
def serve(times: Path, /, config_file: Path | None, **flags: Any) -> None:
    """Serve, with the options of `moa-server serve`."""
    targets: list[TimedTarget] = []

    def load(files: ModelFiles, settings: ServerSettings, progress: Progress) -> Execution:
        execution = load_execution(files, settings, progress)
        targets.append(TimedTarget(execution.target, Planning()))
        return replace(execution, target=targets[0])

    run(load_settings(ServerSettings, SECTION, flags, config_file), load)
    times.write_text(json.dumps([astuple(each) for each in targets[0].forwards]), "utf-8")


if __name__ == "__main__":
    try:
        cli()
    except MoaError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
