"""`moa-bench same-text`: whether int8 writes what llama.cpp writes from the same GGUF file."""

from dataclasses import dataclass
from pathlib import Path

import click

from moa_bench.options import option
from moa_bench.suite import Suite, SuiteInputs


@dataclass(frozen=True, slots=True)
class SameTextEffort:
    """With what to compare."""

    text: Path | None = option(None, "Compare its perplexity.", shown="a passage")


def wanted_folder(inputs: SuiteInputs) -> Path:
    """Where node-llama-cpp is; raises UsageError if nobody says so."""
    if inputs.llama_cpp is None:
        raise click.UsageError("Missing option '--llama-cpp': where npm has installed node-llama-cpp.")
    return inputs.llama_cpp


def refuse(effort: SameTextEffort, inputs: SuiteInputs) -> None:
    wanted_folder(inputs)


SUITE = Suite(
    "same-text",
    "Whether int8 writes what llama.cpp writes from the same GGUF file: greedy continuations, and perplexity.",
    "moa_bench.suites.engine.same_text",
    "",
    SameTextEffort(),
    None,
    ("model", "llama_cpp"),
    lambda effort: 120.0,
    refuse,
)
