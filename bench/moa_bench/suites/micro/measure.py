"""The parts, one after another: forwards, drafting, first tokens, bytes."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

from moa_shared.programs.progress import make_progress

from moa_bench.harness.answers import AnswerClient, PlainClient, closing_all
from moa_bench.harness.byte_counter import counting
from moa_bench.harness.drafters import load_decoder
from moa_bench.harness.oracle_device import ROUNDS
from moa_bench.harness.prompts import chat_tokens, question_of
from moa_bench.harness.split_client import SplitClient, client_settings, load_split_device
from moa_bench.harness.stage import Stage, staged
from moa_bench.harness.targets import load_level
from moa_bench.suite import Result, SuiteRun
from moa_bench.suites.micro.drafting import measure_drafting
from moa_bench.suites.micro.serving import measure_first_tokens, measure_traffic
from moa_bench.suites.micro.suite import MicroEffort
from moa_bench.suites.micro.verification import measure_verification

# The client program's modes, with its own defaults where nothing is said.
SPLIT_WAYS: dict[str, dict[str, Any]] = {
    "split, no drafter": {"drafter": "none"},
    "split, chain of 5": {"mode": "chain", "length": 5},
    "split, tree of 16": {"mode": "tree", "depth": 4, "breadth": 4, "nodes": 16},
}

Makers = dict[str, Callable[[], AnswerClient]]


def measure(effort: MicroEffort, run: SuiteRun) -> Result:
    """All parts, and the seconds that each of these took."""
    result: Result = {}
    with staged(run.model, run.level, run.server_cores, run.own_cores) as stage:
        result |= {"target": stage.files.target_id, "drafter": stage.drafter.description, "seconds": {}}
        _measure_forwards(stage, effort, run, result)
        _measure_serving(stage, effort, run, result)
    return result


@contextmanager
def _section(title: str, result: Result) -> Iterator[None]:
    """One measurement, shown while it runs, its seconds noted."""
    began = time.monotonic()
    with make_progress().task(title):
        yield
    result["seconds"][title] = round(time.monotonic() - began, 1)


def _measure_forwards(stage: Stage, effort: MicroEffort, run: SuiteRun, result: Result) -> None:
    """Verification against the bare forward, and drafting as devices compute it."""
    with _section("Loading the target", result):
        execution = load_level(stage.files, run.level, make_progress())
        target = execution.target
        encode = target.memory_rows(stage.drafter.checkpoint)
    result["execution"] = execution.details
    prefix = chat_tokens(stage.tokenizer, question_of(stage.tokenizer, effort.prefix_tokens))
    with _section("Verification", result):
        result["prefix_tokens"] = len(prefix)
        result["verification"] = measure_verification(target, prefix, encode, effort.repeats)
    with _section("Drafting", result):
        decoder = load_decoder(stage.files, stage.drafter)
        result["drafting"] = measure_drafting(target, decoder, effort.prefix_tokens, 5 * effort.repeats)


def _measure_serving(stage: Stage, effort: MicroEffort, run: SuiteRun, result: Result) -> None:
    """First tokens and bytes of each way to ask, plain streaming first."""
    devices = {}
    for way, fields in SPLIT_WAYS.items():
        program = client_settings(server=stage.address, model=run.model, **({"drafter": stage.path} | fields))
        devices[way] = load_split_device(stage.runner, program)

    def ways(address: str) -> Makers:
        makers: Makers = {"plain streaming": partial(PlainClient, address)}
        split = {
            way: partial(SplitClient, stage.runner, address, device, mode=ROUNDS) for way, device in devices.items()
        }
        return makers | split

    tokenizer = stage.tokenizer
    prompts = [chat_tokens(tokenizer, question_of(tokenizer, length)) for length in effort.prompt_tokens]
    with _section("First token", result), closing_all(ways(stage.address)) as clients:
        result["first_tokens"] = measure_first_tokens(clients, prompts, effort.answers)
    result["traffic"] = []
    with _section("Bytes", result):
        for prompt in prompts:
            for way in ways(stage.address):
                with counting(stage.address) as counter, closing(ways(counter.address)[way]()) as client:
                    result["traffic"].append(measure_traffic(way, client, counter, prompt, effort.answer_tokens))
