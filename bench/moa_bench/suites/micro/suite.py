"""The suite: runs the measurements one after another and reports them as JSON and as tables."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moa_shared.programs.progress import Progress, make_progress
from moa_shared.programs.run_loop import make_runner

from moa_bench.harness.answers import AnswerClient, PlainClient, closing_all
from moa_bench.harness.byte_counter import counting
from moa_bench.harness.cores import on_cores
from moa_bench.harness.drafters import MeasuredDrafter, drafter_file, find_drafter, load_decoder
from moa_bench.harness.oracle_device import ROUNDS
from moa_bench.harness.prompts import chat_tokens, question_of
from moa_bench.harness.servers import running_server
from moa_bench.harness.split_client import SplitClient, client_settings, load_split_device
from moa_bench.harness.targets import load_level
from moa_bench.report.experiment import Experiment
from moa_bench.suites.micro import tables
from moa_bench.suites.micro.overhead import OverheadEffort, measure_overhead
from moa_bench.suites.micro.serving import Traffic, measure_first_tokens, measure_traffic

if TYPE_CHECKING:
    from moa_client.device.loading import Device
    from moa_server.target import Target
    from moa_shared.models import ModelFiles
    from moa_shared.models.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Effort:
    """How much to measure.

    Args:
        prefix_tokens: before forwards and drafts: a question and half of its answer.
        repeats: of each forward; 20 pairs give ratios to about 1 % on a quiet machine.
            prompt_tokens: lengths of the prompts whose first token is timed.
        answer_tokens: of each answer that is timed or counted.
        answers: of each kind.
        overhead: of a server's steps.
    """

    prefix_tokens: int = 256
    repeats: int = 20
    prompt_tokens: tuple[int, ...] = (50, 500)
    answer_tokens: int = 64
    answers: int = 5
    overhead: OverheadEffort = field(default_factory=OverheadEffort)


# The client program's modes, with its own defaults where nothing is said.
SPLIT_WAYS: dict[str, dict[str, Any]] = {
    "split, no drafter": {"drafter": "none"},
    "split, chain of 5": {"mode": "chain", "length": 5},
    "split, tree of 16": {"mode": "tree", "depth": 4, "breadth": 4, "nodes": 16},
}

QUICK = Effort(64, 2, (50,), 32, 1, OverheadEffort(answer_tokens=32, rounds=1))


@dataclass(slots=True)
class Bench:
    """What the measurements share."""

    effort: Effort
    files: ModelFiles
    tokenizer: Tokenizer
    drafter: MeasuredDrafter
    progress: Progress
    result: dict[str, Any]
    devices: dict[str, Device] = field(default_factory=dict)

    @contextmanager
    def section(self, title: str) -> Iterator[None]:
        """One measurement, shown while it runs, its seconds noted."""
        began = time.monotonic()
        with self.progress.task(title):
            yield
        self.result.setdefault("seconds", {})[title] = round(time.monotonic() - began, 1)

    def load_devices(self, runner: asyncio.Runner, address: str, model: str, drafter: str) -> None:
        """What the client program holds in each of its modes; it needs a server to compare with."""
        for way, fields in SPLIT_WAYS.items():
            settings = client_settings(server=address, model=model, **({"drafter": drafter} | fields))
            self.devices[way] = load_split_device(runner, settings)

    def ways(self, runner: asyncio.Runner, address: str) -> dict[str, Callable[[], AnswerClient]]:
        """The clients to compare, plain streaming first."""
        makers: dict[str, Callable[[], AnswerClient]] = {"plain streaming": lambda: PlainClient(address)}
        for way, device in self.devices.items():
            makers[way] = partial(SplitClient, runner, address, device, mode=ROUNDS)
        return makers

    def prompt(self, question: str) -> list[int]:
        return chat_tokens(self.tokenizer, question)


def run_micro(*, model: str, quick: bool, json_file: Path | None, pin: bool, level: str) -> None:
    """Measure and report.

    Raises:
        MoaError: the model cannot be had, or a server or client fails.
    """
    experiment = Experiment("micro", quick=quick, json_file=json_file, pin=pin, level=level)
    from moa_shared.models import load_tokenizer, resolve

    progress = make_progress()
    files = resolve(model, progress=progress)
    bench = Bench(
        QUICK if quick else Effort(), files, load_tokenizer(files), find_drafter(files), progress, experiment.result
    )
    bench.result |= {"target": files.target_id, "drafter": bench.drafter.description}
    with on_cores(experiment.own_cores), tempfile.TemporaryDirectory(prefix="moa-bench-") as folder:
        drafter = str(drafter_file(bench.drafter, Path(folder)))
        _measure_forwards(bench, level)
        with make_runner() as runner:
            with running_server(model, level=level, drafter=drafter, cores=experiment.server_cores) as server:
                bench.load_devices(runner, server.address, model, drafter)
                _measure_serving(bench, runner, server.address)
            with bench.section("Overhead"):
                experiment.result["overhead"] = measure_overhead(
                    model, runner, bench.effort.overhead, level=level, drafter=drafter, cores=experiment.server_cores
                )
    experiment.publish(tables.render(experiment.result))


def _measure_forwards(bench: Bench, level: str) -> None:
    """Verification against the bare forward, and drafting as devices compute it."""
    from moa_bench.suites.micro.verification import measure_verification

    effort = bench.effort
    with bench.section("Loading the target"):
        execution = load_level(bench.files, level, bench.progress)
        target = execution.target
        encode = target.memory_rows(bench.drafter.checkpoint)
    bench.result["execution"] = execution.details
    prefix = bench.prompt(question_of(bench.tokenizer, effort.prefix_tokens))
    with bench.section("Verification"):
        bench.result["prefix_tokens"] = len(prefix)
        bench.result["verification"] = measure_verification(target, prefix, encode, effort.repeats)
    with bench.section("Drafting"):
        _measure_drafting(bench, target)


def _measure_drafting(bench: Bench, target: Target) -> None:
    from moa_bench.suites.micro.drafting import measure_drafting

    decoder = load_decoder(bench.files, bench.drafter)
    effort = bench.effort
    bench.result["drafting"] = measure_drafting(target, decoder, effort.prefix_tokens, 5 * effort.repeats)


def _measure_serving(bench: Bench, runner: asyncio.Runner, address: str) -> None:
    effort = bench.effort
    prompts = [bench.prompt(question_of(bench.tokenizer, length)) for length in effort.prompt_tokens]
    with bench.section("First token"), closing_all(bench.ways(runner, address)) as clients:
        bench.result["first_tokens"] = measure_first_tokens(clients, prompts, effort.answers)
    with bench.section("Bytes"):
        bench.result["traffic"] = [
            _measure_traffic(bench, runner, address, way, prompt)
            for prompt in prompts
            for way in bench.ways(runner, address)
        ]


def _measure_traffic(bench: Bench, runner: asyncio.Runner, address: str, way: str, prompt: Sequence[int]) -> Traffic:
    """The bytes of one answer, on a connection of its own."""
    with counting(address) as counter:
        client = bench.ways(runner, counter.address)[way]()
        try:
            return measure_traffic(way, client, counter, prompt, bench.effort.answer_tokens)
        finally:
            client.close()
