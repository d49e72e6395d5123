"""Reads texts in every way that a server reads them, and compares the bits."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from moa_kernels import variant_name
from moa_server.verifier import Target
from moa_shared.errors import InternalError
from moa_shared.models import ModelFiles, load_tokenizer, resolve
from moa_shared.programs.progress import Progress, make_progress
from moa_shared.protocol.levels import INT8

from moa_bench.harness.prompts import questions_of
from moa_bench.harness.targets import load_level, on_variant, use_threads, variants_here
from moa_bench.suite import Result, SuiteRun
from moa_bench.suites.engine.invariance import InvarianceEffort
from moa_bench.suites.engine.invariance.batches import MOST_SESSIONS, read_batches
from moa_bench.suites.engine.invariance.readings import Tally, chains, chunks, mixed, read, read_resumed, trees
from moa_bench.suites.engine.invariance.reference import read_alone
from moa_bench.suites.engine.invariance.texts import PlannedText, plan_texts

GROUP = MOST_SESSIONS  # texts that share the batches


@dataclass(slots=True)
class ComparedTarget:
    """The target that is compared with itself."""

    level: str
    target: Target
    others: Mapping[str, Target] = field(default_factory=dict)  # on other variants of the kernels, by name
    threads: Sequence[int] = InvarianceEffort().threads  # besides one


def compare(
    subject: ComparedTarget, planned: Sequence[PlannedText], advance: Callable[[int], object] = lambda positions: None
) -> Iterator[tuple[int, dict[str, Tally]]]:
    """Reads all texts in all ways.

    Args:
        advance: takes the number of positions done since the last call.

    Yields:
        After each group how many texts are done, and what was counted so far, by kind.
    """
    tallies: defaultdict[str, Tally] = defaultdict(Tally)
    for first in range(0, len(planned), GROUP):
        group = planned[first : first + GROUP]
        _compare_group(subject, group, first, tallies, advance)
        yield first + len(group), tallies


def _compare_group(
    subject: ComparedTarget,
    planned: Sequence[PlannedText],
    first: int,
    tallies: defaultdict[str, Tally],
    advance: Callable[[int], object],
) -> None:
    target, vocab_size = subject.target, subject.target.vocab_size
    random = Random(first)
    state_layer = random.randint(0, target.layer_count)
    references = []
    for number, text in enumerate(planned, first):
        reference = read_alone(target, text, number, state_layer)
        references.append(reference)
        read(target, reference, tallies["chains of 2 to 62"], chains(random))
        read(target, reference, tallies["prompts in chunks of 1 to 400"], chunks(random))
        read(target, reference, tallies["trees of 8 to 62"], trees(random, vocab_size))
        forks, resumes = tallies["trees of wrong branches, all nodes"], tallies["after a lost cache"]
        read_resumed(target, reference, forks, resumes, random)
        if subject.threads:
            count = subject.threads[number % len(subject.threads)]
            use_threads(subject.level, count)
            read(target, reference, tallies[f"{count} threads"], mixed(random, vocab_size))
            use_threads(subject.level, 1)
        if subject.others:
            name = list(subject.others)[number % len(subject.others)]
            with on_variant(name):
                read(subject.others[name], reference, tallies[f"kernels {name}"], mixed(random, vocab_size))
        advance(text.positions)
    read_batches(target, references, tallies, random)


def measure(effort: InvarianceEffort, run: SuiteRun) -> Result:
    """Compares, and saves what was counted after each group of texts: a run takes an hour."""
    progress = make_progress()
    asked = questions_of(run.questions)
    files = resolve(run.model, progress=progress)
    wanted, level = effort.positions, run.level
    planned = plan_texts(load_tokenizer(files), asked, wanted)
    execution = load_level(files, level, progress)
    subject = ComparedTarget(level, execution.target, threads=effort.threads)
    names: list[str] = []
    if level == INT8:
        names = variants_here()
        subject.others = {name: _load_on(name, files, progress) for name in names if name != variant_name()}
    result: Result = {
        "name": f"invariance-{level}",
        "target": files.target_id,
        "execution": execution.details,
        "is_exact": execution.exact,
        "variants": names,
    }
    began = time.monotonic()
    with progress.task("Positions", wanted) as task:
        for count, tallies in compare(subject, planned, task.advance):
            done = planned[:count]
            result |= {
                "positions": sum(text.positions for text in done),
                "texts": count,
                "longest": max(text.positions for text in done),
                "seconds": round(time.monotonic() - began, 1),
                "kinds": [{"kind": kind, "counts": counts} for kind, counts in tallies.items()],
            }
            run.save(result)
    return result


def check(result: Mapping[str, Any]) -> None:
    """Raises InternalError where a level promises bits that do not depend on what is computed together, and they do."""
    if result["is_exact"] and any(kind["counts"].different for kind in result["kinds"]):
        raise InternalError(f"At {result['level']} a row's bits depend on what is computed with it.")


def _load_on(name: str, files: ModelFiles, progress: Progress) -> Target:
    with on_variant(name):
        return load_level(files, INT8, progress).target
