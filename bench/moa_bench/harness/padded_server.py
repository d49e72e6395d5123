"""`python -m moa_bench.harness.padded_server --target-ms T serve ...`: a server with the cost of a larger target.

Texts, drafts, protocol and scheduling are the real ones; each forward sleeps until its stated cost has
passed. A forward that takes longer than that by itself is not padded, so T must be well above the target's own step.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from moa_server.commands.serve import run
from moa_server.settings import SECTION, ServerSettings
from moa_server.target import Request, Target, TargetOutput
from moa_server.target.execution_level import Execution, load_execution
from moa_server.target.self_test import SelfTest
from moa_shared.errors import MoaError
from moa_shared.programs.command_line import settings_options
from moa_shared.programs.config import load_settings

from moa_bench.harness.padding import Padding
from moa_bench.harness.wrapped_target import WrappedTarget

if TYPE_CHECKING:
    from moa_shared.models import ModelFiles
    from moa_shared.programs.progress import Progress


class PaddedTarget(WrappedTarget):
    """A target whose forwards take a stated time."""

    def __init__(self, inner: Target, padding: Padding, sleep: Callable[[float], None] = time.sleep) -> None:
        super().__init__(inner)
        self._padding = padding
        self._sleep = sleep

    def _run(self, requests: Sequence[Request], depths: Sequence[Sequence[int]]) -> list[TargetOutput]:
        began = time.perf_counter()
        outputs = super()._run(requests, depths)
        seconds = self._padding.seconds(sum(len(request.tokens) for request in requests))
        self._sleep(max(0.0, began + seconds - time.perf_counter()))
        return outputs


@click.group()
@click.option("--target-ms", type=float, required=True)
@click.option("--target-row-ms", type=float, required=True)
@click.pass_context
def cli(context: click.Context, target_ms: float, target_row_ms: float) -> None:
    """A server for `moa-bench`, not for use."""
    context.obj = Padding(target_ms, target_row_ms)


@cli.command()
@settings_options(ServerSettings, SECTION)
@click.pass_obj
def serve(padding: Padding, /, config_file: Path | None, **flags: Any) -> None:
    """Serve, with the options of `moa-server serve`."""

    def load(files: ModelFiles, settings: ServerSettings, progress: Progress) -> Execution:
        execution = load_execution(files, settings, progress)
        told = SelfTest(padding.step_ms, padding.row_ms)
        return replace(execution, target=PaddedTarget(execution.target, padding), test=told)

    run(load_settings(ServerSettings, SECTION, flags, config_file), load)


if __name__ == "__main__":
    try:
        cli()
    except MoaError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
