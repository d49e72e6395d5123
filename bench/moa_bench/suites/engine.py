"""`moa-bench engine`: forwards on the kernels, torch and llama.cpp in interleaved rounds, by rows and context; memory.

The memory limit: a step cannot be faster than reading the bytes that it needs, at what one core reads a second. Run as
a program this is a target in a process of its own. A line of JSON in, a line of JSON out: `read` tokens into an empty
cache, or `forward` a binary tree of rows after them.
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
from moa_kernels import F16
from moa_kernels.library import variant_name
from moa_server.verifier import Target
from moa_shared.errors import ConfigError
from moa_shared.models import resolve
from moa_shared.models.files import ModelFiles
from moa_shared.models.gguf_entry import is_gguf
from moa_shared.models.network.plan import cached_heads
from moa_shared.models.storage.tensors import EMBEDDINGS, HEAD, LAYER_EMBEDDINGS, is_of_expert
from moa_shared.models.weights import WeightReader, idle_share
from moa_shared.programs.machine import ms_since
from moa_shared.programs.progress import Progress, make_progress
from moa_shared.sampling.settings import INT8, LEVELS

from moa_bench.harness.child import WorkerCommand, WorkerProcess, running_workers
from moa_bench.harness.stage import load_level
from moa_bench.machine import collect_interleaved, memory_mb, on_cores
from moa_bench.registry import LLAMA_CPP, EngineEffort
from moa_bench.report import Column, Spread, facts_line, paired_ratio, table, table_of
from moa_bench.suite import Result, SuiteRun


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
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # logs and whatever else is printed go to standard error
    execution = load_level(resolve(model), level, Progress())
    worker = Worker(execution.target)
    print(json.dumps({"details": execution.details}), file=answers)
    for line in sys.stdin:
        command: dict[str, Any] = json.loads(line)
        taken = worker.read(command["read"]) if "read" in command else worker.forward(command["forward"])
        print(json.dumps({"ms": taken, "resident_mb": memory_mb(os.getpid())}), file=answers)


if __name__ == "__main__":
    main()


READ_BYTES = 1 << 28  # far beyond every cache of a processor
READING = "reading memory"


def measure(effort: EngineEffort, run: SuiteRun) -> Result:
    progress = make_progress()
    files = resolve(run.model, progress=progress)
    subjects = our_subjects(run.model, is_sized=run.shape is not None)
    if run.llama_cpp is not None:
        subjects.append(llama_subject(run.llama_cpp, files))
    else:
        progress.note("llama.cpp is not measured: --llama-cpp names no folder with node-llama-cpp.")
    with running_workers(subjects, run.server_cores, progress) as workers:
        with on_cores(run.server_cores):
            result: Result = {"target": files.target_id} | _measure(workers, files, effort, progress)
        result["memory"] = {worker.subject.name: worker.resident_mb for worker in workers}
        result["load_s"] = {worker.subject.name: round(worker.load_s, 2) for worker in workers}
        result["details"] = {worker.subject.name: worker.details for worker in workers}
    return result


def _measure(workers: Sequence[WorkerProcess], files: ModelFiles, effort: EngineEffort, progress: Progress) -> Result:
    def timing(worker: WorkerProcess, **command: int) -> Callable[[], float]:
        return lambda: float(worker.ask(command)["ms"])

    (weights, position), array = step_bytes(files), np.ones(READ_BYTES // 4, np.float32)
    forwards: list[dict[str, Any]] = []
    prompts: list[dict[str, Any]] = []
    limits: list[dict[str, Any]] = []
    steps: dict[str, list[float]] = {}
    with progress.task("Forwards", len(effort.contexts) * (len(effort.rows) + 1)) as task:
        for context in effort.contexts:
            reading = {worker.subject.name: timing(worker, read=context) for worker in workers}
            taken = collect_interleaved(reading, effort.prompts, warm_up=1)
            a_token = {name: Spread.of([each / context for each in ms]) for name, ms in taken.items()}
            prompts += [{"engine": name, "context": context, "ms_a_token": ms} for name, ms in a_token.items()]
            task.advance(1)
            for rows in effort.rows:
                asked = [worker for worker in workers if worker.subject.trees or rows == 1]
                cases = {worker.subject.name: timing(worker, forward=rows) for worker in asked}
                if rows == 1:
                    cases[READING] = partial(time_reading, array)
                taken = collect_interleaved(cases, effort.rounds)
                if rows == 1:
                    read_ms, needed, steps = taken.pop(READING), weights + context * position, taken
                    gb_s = Spread.of([READ_BYTES / ms / 1e6 for ms in read_ms])
                    limit_ms = Spread.of([ms * needed / READ_BYTES for ms in read_ms])
                    limits.append({"context": context, "mb": round(needed / 1e6, 1), "gb_s": gb_s, "ms": limit_ms})
                for name, ms in taken.items():  # and their ratio to the same engine's plain step, round by round
                    found = {"ms": Spread.of(ms), "to_step": paired_ratio(ms, steps[name])}
                    forwards.append({"engine": name, "context": context, "rows": rows} | found)
                task.advance(1)
    return {"forwards": forwards, "prompts": prompts, "limits": limits}


def step_bytes(files: ModelFiles) -> tuple[int, int]:
    """What a plain step reads: bytes of all layers and the head, as they are in the file, of experts those that a token
    goes to; and bytes of keys and values of each position, in float16.
    """
    reader = WeightReader(files)
    read = [name for name in reader.names() if name not in (EMBEDDINGS, HEAD, LAYER_EMBEDDINGS)]
    idle = idle_share(files.config) * sum(reader.stored_bytes(name) for name in read if is_of_expert(name))
    weights = sum(map(reader.stored_bytes, [*read, HEAD])) - int(idle)
    return weights, sum(heads.nbytes(F16) for heads in cached_heads(files.config))


def time_reading(array: npt.NDArray[np.float32]) -> float:
    """Milliseconds of reading an array once: a dot product with itself, which is bound by memory."""
    began = time.perf_counter()
    np.dot(array, array)
    return ms_since(began)


def our_subjects(model: str, *, is_sized: bool) -> list[WorkerCommand]:
    """The kernels in use, and torch on both of its levels; of a large model not torch, which unpacks all weights."""
    levels = {f"kernels, {variant_name()}": INT8}
    if not is_sized:
        levels |= {"torch bf16": "bf16", "torch float32": "float32"}
    worker = (sys.executable, "-P", "-m", "moa_bench.suites.engine", "--model", model, "--level")
    return [WorkerCommand(name, (*worker, level)) for name, level in levels.items()]


def llama_subject(folder: Path, files: ModelFiles) -> WorkerCommand:
    """llama.cpp on the same file, as a script lets it obey."""
    node = shutil.which("node")
    if node is None or not (folder / "node_modules" / "node-llama-cpp").is_dir():
        missing = "node" if node is None else f"{folder}/node_modules/node-llama-cpp"
        hint = f"Run npm install --prefix {folder} node-llama-cpp, or leave out --llama-cpp."
        raise ConfigError(f"llama.cpp cannot be measured: {missing} is not there.", hint=hint)
    if not is_gguf(files.weights[0]):
        hint = "Leave out --llama-cpp."
        raise ConfigError(f"llama.cpp cannot be measured: {files.target_id} is not a GGUF file.", hint=hint)
    script = str(Path(__file__).with_name("llama_cpp.mjs"))
    return WorkerCommand(LLAMA_CPP, (node, script, str(folder.resolve()), str(files.weights[0])), trees=False)


LIMITS: tuple[Column, ...] = (
    ("engine", "{0[0][engine]}"),
    ("context", "{0[0][context]}"),
    ("plain step, ms", "{0[0][ms]:1}"),
    ("reading its bytes, ms", "{0[1][ms]:1}"),
    ("ratio", lambda pair: f"{pair[0]['ms'].median / pair[1]['ms'].median:.2f}"),
)


def render(result: Mapping[str, Any]) -> str:
    parts = [facts_line(result)]
    for context in dict.fromkeys(cost["context"] for cost in result["forwards"]):
        parts += [f"### A forward after {context} tokens, ms\n", _forwards(result, context)]
    parts += ["### Reading a prompt, ms a token\n", _prompts(result)]
    parts += ["### The plain step over its limit\n", _limits(result)]
    return "\n".join(parts)


def _forwards(result: Mapping[str, Any], context: int) -> str:
    costs = [cost for cost in result["forwards"] if cost["context"] == context]
    counts = sorted({cost["rows"] for cost in costs})
    rows = []
    for engine in dict.fromkeys(cost["engine"] for cost in costs):
        found = {cost["rows"]: cost for cost in costs if cost["engine"] == engine}
        cells = [f"{found[count]['ms'].median:.1f}" if count in found else "" for count in counts]
        cells += [f"{found[count]['to_step'].median:.2f}" if count in found else "" for count in (8, 16)]
        rows.append([engine, *cells])
    limit = next(limit for limit in result["limits"] if limit["context"] == context)
    rows.append(["memory limit", f"{limit['ms'].median:.1f}", *[""] * (len(counts) + 1)])
    heads = ["1 row" if count == 1 else str(count) for count in counts]
    return table(["engine", *heads, "8 rows over 1", "16 over 1"], rows)


def _prompts(result: Mapping[str, Any]) -> str:
    costs, memory, load_s = result["prompts"], result["memory"], result["load_s"]
    contexts = list(dict.fromkeys(cost["context"] for cost in costs))
    rows = []
    for engine in dict.fromkeys(cost["engine"] for cost in costs):
        found = {cost["context"]: cost["ms_a_token"] for cost in costs if cost["engine"] == engine}
        read = [f"{found[context].median:.2f}" for context in contexts]
        rows.append([engine, *read, f"{memory[engine]:.0f}", f"{load_s[engine]:.1f}"])
    return table(["engine", *(f"{context} tokens" for context in contexts), "resident then, MB", "start, s"], rows)


def _limits(result: Mapping[str, Any]) -> str:
    limits, forwards = result["limits"], result["forwards"]
    plain = [cost for cost in forwards if cost["rows"] == 1]
    pairs = [(cost, limit) for limit in limits for cost in plain if cost["context"] == limit["context"]]
    note = (
        f"The bytes of a step in the file's own format, and keys and values in float16: {limits[0]['mb']:.0f} MB after "
        f"{limits[0]['context']} tokens. One core reads {limits[0]['gb_s']:1} GB/s.\n\n"
    )
    return note + table_of(LIMITS, pairs)
