"""A target in a process of its own (`python -m moa_bench.suites.engine.worker`), which forwards on command.

A line of JSON in, a line of JSON out: `read` tokens into an empty cache, or `forward` a binary tree of rows after them.
"""

import json
import os
import sys
import time
from typing import Any

import click
from moa_server.verifier import Target
from moa_shared.defaults import LEVELS
from moa_shared.programs.machine import ms_since

from moa_bench.harness.stage import load_level
from moa_bench.machine import memory_mb


def binary_tree(rows: int) -> list[int]:
    """Parents of a tree of so many rows, each with two children: a root, and what hangs below it."""
    return [-1, *((row - 1) // 2 for row in range(1, rows))]


def some_tokens(count: int, vocab_size: int) -> list[int]:
    return [(7 * place + 11) % vocab_size for place in range(count)]


class Worker:
    def __init__(self, target: Target) -> None:
        self._target = target
        self._cache = target.new_cache()
        self._context = 0

    def read(self, tokens: int) -> float:
        """Milliseconds of a prompt of so many tokens, which is the context from now on."""
        self._cache = self._target.new_cache()
        self._context = tokens
        began = time.perf_counter()
        self._target.prefill(self._cache, some_tokens(tokens, self._target.vocab_size))
        return ms_since(began)

    def forward(self, rows: int) -> float:
        """Milliseconds of a forward with the logits of all rows."""
        tokens = some_tokens(rows, self._target.vocab_size)
        began = time.perf_counter()
        self._target.forward(self._cache, tokens, binary_tree(rows))
        taken = ms_since(began)
        self._cache.crop(self._context)
        return taken


@click.command()
@click.option("--model", required=True)
@click.option("--level", type=click.Choice(LEVELS), required=True)
def main(model: str, level: str) -> None:
    """A subject of `moa-bench engine`, not for use."""
    from moa_shared.models import resolve
    from moa_shared.programs.progress import SilentProgress

    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # logs and whatever else is printed go to standard error
    execution = load_level(resolve(model), level, SilentProgress())
    worker = Worker(execution.target)
    print(json.dumps({"details": execution.details}), file=answers)
    for line in sys.stdin:
        command: dict[str, Any] = json.loads(line)
        taken = worker.read(command["read"]) if "read" in command else worker.forward(command["forward"])
        print(json.dumps({"ms": taken, "resident_mb": memory_mb(os.getpid())}), file=answers)


if __name__ == "__main__":
    main()
