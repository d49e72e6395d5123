"""Runs a suite: what is recorded before it starts, and where its result and its tables go."""

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from moa_bench.harness.cores import split_cores
from moa_bench.harness.shapes import USUAL_FORMAT
from moa_bench.report.facts import gather_facts
from moa_bench.report.journal import Keep, measure_afresh
from moa_bench.report.report import checkout_root, publish, to_json, write_text
from moa_bench.suite import Result, Suite, SuiteInputs, SuiteRun

STANDARD_OUTPUT = Path("-")


def run_suite(
    suite: Suite[Any],
    effort: Any,
    inputs: SuiteInputs,
    *,
    quick: bool,
    json_file: Path | None,
    keep: Keep = measure_afresh,
) -> None:
    """Measures and publishes. Numpy's own products take one thread from here on.

    Args:
        json_file: where the result goes instead of the checkout; None: the checkout, unless quick.
    """
    root = checkout_root()
    head: Result = {"suite": suite.name, "quick": quick}
    if not suite.is_computed:
        head |= {"pinned": inputs.pin, "machine": gather_facts(root)}
    os.environ["OMP_NUM_THREADS"] = "1"
    server_cores, own_cores = split_cores(inputs.pin)
    name = suite.name if suite.fixed else suite.name + inputs.suffix
    inputs = sized(inputs)

    def complete(measured: Result) -> Result:
        level = {"level": inputs.level} if "level" in suite.takes else {}
        return head | {"name": name, "effort": effort} | level | measured

    def save(measured: Result) -> None:
        if json_file not in (None, STANDARD_OUTPUT):
            write_text(json_file, to_json(complete(measured)))

    run = SuiteRun(**vars(inputs), server_cores=server_cores, own_cores=own_cores, keep=keep, save=save)
    result = complete(suite.measure(effort, run))
    publish(result["name"], result, suite.render(result), quick=quick, json_file=json_file)
    suite.check(result)


def sized(inputs: SuiteInputs) -> SuiteInputs:
    """With the model of the shape, made now or before, where one is wanted."""
    if inputs.shape is None:
        return inputs
    from moa_shared.programs.progress import make_progress

    from moa_bench.harness.random_model import random_model

    return replace(inputs, model=str(random_model(inputs.shape, inputs.stored or USUAL_FORMAT, make_progress())))


def journal_header(suite: Suite[Any], effort: Any, inputs: SuiteInputs, *, quick: bool) -> dict[str, Any]:
    """What all cells of a run depend on: commit, machine, inputs, effort; not the time or the load."""
    return run_header(inputs, quick=quick) | {"suite": suite.name, "effort": asdict(effort)}


def run_header(inputs: SuiteInputs, *, quick: bool) -> dict[str, Any]:
    """That of a run of several suites, without their efforts."""
    machine = gather_facts(checkout_root())
    facts = {key: machine[key] for key in ("commit", "cpu", "cores_allowed", "system", "python", "packages")}
    return facts | {
        **vars(inputs),
        "quick": quick,
        "questions": str(inputs.questions.absolute()),
        "llama_cpp": str(inputs.llama_cpp),
        "drafters": {name: str(path.absolute()) for name, path in inputs.drafters.items()},
    }


def duration(seconds: float) -> str:
    """In words: seconds below 90, then minutes, then hours and minutes."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
